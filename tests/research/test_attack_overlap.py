"""Which of its own users a party finds at other parties, and how the audit reports it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import verfedgnn as vf
from helpers import page_text
from verfedgnn.data.parties import parties_from_tables
from verfedgnn.data.synthetic import synthetic_tables
from verfedgnn.privacy.rating_dp import fit_budget
from verfedgnn.runs.prepared_data import split_ratings
from verfedgnn_research.attacks import overlap_attack
from verfedgnn_research.attacks.audit import THIS, Audit
from verfedgnn_research.attacks.audit_report import _describe_price, audit_document, strongest
from verfedgnn_research.attacks.federation_sample import PARTY_USERS, sample_users
from verfedgnn_research.attacks.overlap_attack import Listener, attack_overlap
from verfedgnn_research.attacks.recording import record_federation


@pytest.fixture(scope="module")
def parties() -> list[vf.PartyData]:
    """Three parties of 600 users; three in ten are at all of them, the others at one."""
    return parties_from_tables(synthetic_tables(3, 0.3, users=600, items=100, ratings=12_000))


@pytest.fixture(scope="module")
def few() -> list[vf.PartyData]:
    return parties_from_tables(synthetic_tables(3, 0.3, users=60, items=20, ratings=900))


def areas(found: dict[str, Any]) -> dict[str, float]:
    return {name: each["auc"] for name, each in found["attacks"].items()}


@pytest.mark.parametrize("preset", ["paper", "best"])
def test_exact_sums_show_who_is_elsewhere(parties: list[vf.PartyData], preset: str) -> None:
    found = attack_overlap(parties, vf.Config.preset(preset), rounds=12)
    shown = areas(found)
    if preset == "best":
        assert shown["numbers of ratings, first round"] == 1
    assert max(shown.values()) > 0.98
    assert found["rounds"] == 12
    assert abs(found["guess"] - 0.5) < 0.1


def test_two_parties_blur_the_numbers_of_ratings() -> None:
    two = parties_from_tables(synthetic_tables(2, 0.3, users=600, items=100, ratings=3_000))
    plain, noised = (
        areas(
            attack_overlap(
                two,
                vf.Config.preset("best", **{"gradients.noise": noise, "split.fractions": (0.6, 0.2, 0.2)}),
                rounds=2,
            )
        )
        for noise in (0.0, 0.25)
    )
    name = "numbers of ratings, first round"
    assert plain[name] > 0.99
    assert noised[name] < 0.98


def test_noise_for_a_small_budget_hides_who_is_elsewhere_and_for_epsilon_4_only_blurs_it(
    parties: list[vf.PartyData],
) -> None:
    """The standard error of an AUC is 0.015 here. A score without information misses 0.5 +- 0.1 less than once in 10^9 draws."""
    private = vf.Config.preset("private")
    hidden = attack_overlap(parties, fit_budget(private, wanted=1.0))
    assert all(each["error"] < 0.02 for each in hidden["attacks"].values())
    assert all(abs(area - 0.5) < 0.1 for area in areas(hidden).values())
    blurred = attack_overlap(parties, private)
    assert blurred["rounds"] == 40  # all rounds of the preset
    assert 0.6 < max(areas(blurred).values()) < 0.8
    assert abs(areas(blurred)["gradients, round by round"] - 0.5) < 0.1


@pytest.mark.parametrize("preset", ["paper", "best"])
def test_ternary_rows_are_zero_without_training_ratings_elsewhere(
    few: list[vf.PartyData], preset: str
) -> None:
    federation = record_federation(few, vf.Config.preset(preset))
    listeners = [Listener(party) for party in federation.parties]
    for _ in range(20):
        trip = federation.round()
        for listener in listeners:
            listener.hear(federation.sum_of_others(trip, listener.party.index))
    counts = torch.stack([torch.bincount(p.train.user.long(), minlength=144) for p in federation.prepared])
    for p, listener in enumerate(listeners):
        elsewhere = counts.sum(0) - counts[p] > 0
        shown = listener.scores()["gradients, round by round"] > 0
        assert not shown[~elsewhere].any()
        assert shown[elsewhere].double().mean() > 0.95


def test_a_party_that_is_not_always_active_hears_less(few: list[vf.PartyData]) -> None:
    found = attack_overlap(few, vf.Config.preset("paper", participation=0.7), rounds=20)
    assert areas(found)["gradients, round by round"] > 0.95


def test_sampled_users_keep_their_ratings_and_parts(
    few: list[vf.PartyData], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overlap_attack, "USERS", 70)
    config = vf.Config.preset("paper")
    parts = [split_ratings(party, config.split, 0) for party in few]
    sampled, kept = sample_users(few, parts, 70, np.random.default_rng(0))
    for before, part, after, left in zip(few, parts, sampled, kept, strict=True):
        old, new = before.ratings, after.ratings
        assert new.n_users == 70
        chosen = np.isin(old.user_ids[old.user], new.user_ids)
        assert np.array_equal(old.user_ids[old.user[chosen]], new.user_ids[new.user])
        assert np.array_equal(old.rating[chosen], new.rating)
        assert np.array_equal(part[chosen], left)
    assert attack_overlap(few, config, rounds=3)["users"] == 70


def test_a_party_with_few_users_is_in_the_sample() -> None:
    tables = [synthetic_tables(2, 0.5, users=n, items=20, ratings=9 * n)[p] for p, n in enumerate((900, 30))]
    parties = parties_from_tables(tables)
    sampled, _ = sample_users(
        parties, [np.zeros(len(p.ratings), np.int8) for p in parties], 100, np.random.default_rng(0)
    )
    assert len(np.unique(sampled[1].ratings.user)) >= PARTY_USERS


def audited(folder: Path, rounds: int) -> Audit:
    work = Audit(folder, rounds=rounds, victims=5, compare=False)
    for step in work.steps:
        work.take(step)
    return work


def test_the_audit_says_what_a_party_learns_about_its_own_users(
    few: list[vf.PartyData], tmp_path: Path
) -> None:
    config = vf.Config.preset("best").with_values({"epochs": 12, "dim": 8})
    vf.train(few, config, out=tmp_path / "run")
    work = audited(tmp_path / "run", 11)
    (reached,) = (each for each in strongest(work.found[THIS]) if each.attacker == "overlap")
    assert reached.learnt
    text = page_text(audit_document(work).html())
    about = r"a party that only takes part which of its users are at other parties AUC (1\.00|0\.9\d) 0\.5"
    assert re.search(about, text)
    assert "11 rounds with 144 users were recorded" in text
    assert re.search(r"the party names the right one in (9\d|100)% of all cases", text)
    assert "this run lists party, fakes " in text
    assert "Privacy guarantees of the lists' training" in text
    assert "sample" not in _describe_price(work)
    work.settings["ratings"] -= 1
    assert f"on all data, has {work.run.metrics['test']['rmse']:.4f}" in _describe_price(work)


def test_the_question_is_void_for_a_cut_catalogue(tmp_path: Path) -> None:
    table = vf.data.synthetic_ratings(users=100, items=60, ratings=2500, seed=2)
    vf.train(vf.split_items(table, parties=3), vf.Config.preset("paper", epochs=2), out=tmp_path / "run")
    work = audited(tmp_path / "run", 2)
    assert work.found[THIS]["overlap"]["attacks"] == {}
    page = page_text(audit_document(work).html())
    assert "Which of a party's users are at other parties: the question is void." in page
