"""The paper's attacks: cases solved by hand, the subset search against all subsets, small federations with adversaries."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp
from torch import Tensor

import verfedgnn as vf
from helpers import config
from verfedgnn.core.errors import ConfigError, DataError
from verfedgnn.core.key_stream import NoiseKey
from verfedgnn.core.random_streams import simulated_secret
from verfedgnn.data import TRAIN, check_parties
from verfedgnn.protocol.forward_backward import compute
from verfedgnn.runs.prepared_data import split_ratings
from verfedgnn_research.attacks import attack_cell as cells
from verfedgnn_research.attacks import subset_search as subset
from verfedgnn_research.attacks.adversaries import Planted, choose_items, plant
from verfedgnn_research.attacks.attack_cell import AttackCell
from verfedgnn_research.attacks.attack_scores import Scores, claimed, misplaced, popular, score
from verfedgnn_research.attacks.matching import match_gradients, match_items, match_users
from verfedgnn_research.attacks.paper_attacks import choose_victims, mount_paper_attacks, neighbours
from verfedgnn_research.attacks.run_view import RunInternals
from verfedgnn_research.attacks.subset_search import SCALES, best_subsets
from verfedgnn_research.baselines import METHODS, Where
from verfedgnn_research.experiments.training_cell import Record
from verfedgnn_research.paper.attack_tables import TABLE3, TABLE4, TABLE5, TABLE7
from verfedgnn_research.paper.paper_experiment import PaperScope

SHARES = (0.2, 0.5, 0.8)


def planted(parties: list[vf.PartyData], chosen: vf.Config, share: float = 0.8, seed: int = 0) -> Planted:
    parts = [split_ratings(party, chosen.split, chosen.seed) for party in parties]
    items = choose_items(parties[1].ratings.n_items, share, np.random.default_rng(seed))
    return plant(parties, parts, target=1, items=items)


def trained(fakes: Planted, chosen: vf.Config) -> vf.Run:
    return vf.train(fakes.parties, chosen, parts=fakes.parts)


@pytest.fixture(scope="module")
def attacked(small_parties: list[vf.PartyData]) -> tuple[Planted, vf.Run]:
    fakes = planted(small_parties, config())
    return fakes, trained(fakes, config())


# -- adversaries -----------------------------------------------------------------------------------------------------------


def test_adversaries_rate_one_item_each_and_only_in_training(small_parties: list[vf.PartyData]) -> None:
    fakes = planted(small_parties, config())
    check_parties(fakes.parties)
    before = small_parties[1].ratings
    after = fakes.parties[1].ratings
    assert len(fakes.users) == round(0.8 * before.n_items) == len(after) - len(before)
    assert fakes.honest == before.n_users
    assert len(set(fakes.items.tolist())) == len(fakes.items)
    new = slice(len(before), None)
    assert np.array_equal(after.user[new], fakes.users)
    assert np.array_equal(after.item[new], fakes.items)
    assert (after.rating[new] == before.scale[1]).all()
    assert (fakes.parts[1][new] == TRAIN).all()
    for p in (0, 2):
        assert np.array_equal(fakes.parties[p].ratings.user, small_parties[p].ratings.user)
        assert len(fakes.parts[p]) == len(small_parties[p].ratings)
    assert len(set(after.user_ids.tolist())) == after.n_users
    assert np.array_equal(after.user_ids[: fakes.honest], before.user_ids)


def test_a_smaller_share_is_a_part_of_a_larger_one(small_parties: list[vf.PartyData]) -> None:
    fakes = planted(small_parties, config(), 0.8)
    counts = [fakes.count(share) for share in SHARES]
    assert counts == [round(share * 30) for share in SHARES]
    few = planted(small_parties, config(), 0.2)
    assert np.array_equal(few.items, fakes.items[: counts[0]])
    with pytest.raises(DataError, match="plant more"):
        few.count(0.5)
    with pytest.raises(DataError, match="share of the target's items"):
        planted(small_parties, config(), 0.0)


def test_adversaries_planted_twice_have_other_ids(small_parties: list[vf.PartyData]) -> None:
    once = planted(small_parties, config(), 0.1)
    twice = plant(once.parties, once.parts, target=0, items=np.arange(3))
    check_parties(twice.parties)
    assert len(set(twice.parties[0].ratings.user_ids.tolist())) == 120 + 3 + 3


# -- the subset search -----------------------------------------------------------------------------------------------------


def all_subsets(x: Tensor, candidates: Tensor, scale: subset.Scale, most: int) -> tuple[float, int]:
    """Distance and size of the best subset, by trying them all."""
    best = (float("inf"), 0)
    for size in range(1, most + 1):
        for members in itertools.combinations(range(len(candidates)), size):
            best = min(best, (float((x - scale(size) * candidates[list(members)].sum(0)).abs().sum()), size))
    return best


@settings(max_examples=40)
@given(
    st.integers(1, 9),
    st.integers(1, 5),
    st.integers(0, 2**32 - 1),
    st.sampled_from(sorted(SCALES)),
    st.sampled_from([4, 7 * 6, 1 << 25]),
)
def test_the_search_finds_what_trying_all_subsets_finds(
    count: int, dim: int, seed: int, gnn: str, distances: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    candidates = torch.randn(count, dim, generator=generator)
    victims = torch.randn(6, dim, generator=generator) * 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subset, "DISTANCES", distances)  # several blocks
        found = best_subsets(victims, candidates, SCALES[gnn])
    for x, members, distance in zip(victims, found.members, found.distance, strict=True):
        least, _ = all_subsets(x, candidates, SCALES[gnn], 3)
        named = members[members >= 0]
        assert float(distance) == pytest.approx(least, abs=1e-5)
        assert float((x - SCALES[gnn](len(named)) * candidates[named].sum(0)).abs().sum()) == pytest.approx(
            least, abs=1e-5
        )
        assert named.tolist() == sorted(set(named.tolist()))


def by_highs(x: Tensor, candidates: Tensor, scale: subset.Scale, most: int) -> float:
    """The least distance by mixed-integer programs: |x - f(c) sum_j b_j c_j| <= t in every coordinate, b whole with sum c."""
    count, dim = candidates.shape
    atoms = candidates.T.double().numpy()
    target = x.double().numpy()
    one = np.eye(dim)
    found = []
    for size in range(1, min(most, count) + 1):
        columns = scale(size) * atoms
        solved = milp(
            np.r_[np.zeros(count), np.ones(dim)],
            integrality=np.r_[np.ones(count), np.zeros(dim)],
            bounds=Bounds(np.zeros(count + dim), np.r_[np.ones(count), np.full(dim, np.inf)]),
            constraints=[
                LinearConstraint(np.hstack([columns, -one]), ub=target),
                LinearConstraint(np.hstack([columns, one]), lb=target),
                LinearConstraint(np.r_[np.ones(count), np.zeros(dim)], size, size),
            ],
        )
        found.append(solved.fun)
    return float(min(found))


@pytest.mark.parametrize("gnn", sorted(SCALES))
def test_the_search_finds_what_a_mixed_integer_solver_finds(gnn: str) -> None:
    """HiGHS on 25 items in six dimensions: sums of three with an error, and rows that are no sum at all."""
    generator = torch.Generator().manual_seed(11)
    candidates = torch.randn(25, 6, generator=generator)
    sums = torch.stack(
        [SCALES[gnn](3) * candidates[torch.randperm(25, generator=generator)[:3]].sum(0) for _ in range(3)]
    )
    victims = torch.cat(
        [sums + 0.2 * torch.randn(sums.shape, generator=generator), torch.randn(3, 6, generator=generator)]
    )
    found = best_subsets(victims, candidates, SCALES[gnn])
    for x, distance in zip(victims, found.distance, strict=True):
        assert float(distance) == pytest.approx(by_highs(x, candidates, SCALES[gnn], 3), abs=1e-4)


def test_the_search_names_planted_subsets_among_many() -> None:
    generator = torch.Generator().manual_seed(3)
    candidates = torch.randn(60, 6, generator=generator)
    chosen = [
        sorted(torch.randperm(60, generator=generator)[:size].tolist())
        for size in (1, 2, 3)
        for _ in range(10)
    ]
    for scale in SCALES.values():
        victims = torch.stack([scale(len(c)) * candidates[c].sum(0) for c in chosen])
        found = best_subsets(victims, candidates, scale)
        assert [[m for m in row if m >= 0] for row in found.members.tolist()] == chosen
        assert float(found.distance.max()) < 1e-5


def test_of_equally_near_subsets_a_smallest_is_taken() -> None:
    candidates = torch.tensor([[0.0], [1.0], [1.0], [3.0]])
    found = best_subsets(torch.tensor([[1.0], [4.0]]), candidates, lambda c: 1.0)
    assert found.members.tolist() == [[1, -1, -1], [1, 3, -1]]
    wary = best_subsets(torch.tensor([[4.005]]), candidates, lambda c: 1.0, margin=2.0)
    assert wary.members.tolist() == [[3, -1, -1]]


# -- matching and gradients ------------------------------------------------------------------------------------------------


def test_items_are_matched_only_where_embeddings_are_identical() -> None:
    items = torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 1e-3]])
    assert match_items(items, items[[1]]).tolist() == [-1, 0, -1]
    assert match_items(items, items[[2, 0]]).tolist() == [1, -1, 0]


def test_users_are_matched_to_the_nearest_adversaries() -> None:
    adversarial = torch.tensor([[0.0, 0.0], [1.0, 1.0], [5.0, 5.0], [0.0, 0.4]])
    assert match_users(torch.tensor([[0.0, 0.1]]), adversarial).tolist() == [[0, 3, 1]]
    assert match_users(torch.tensor([[0.0, 0.1]]), adversarial[:2]).tolist() == [[0, 1]]


def test_plain_gradients_add_up() -> None:
    adversarial = torch.tensor([[1.0, 0.0], [0.0, 3.0], [-7.0, 2.0]])
    found = match_gradients(torch.tensor([[1.0, 3.0], [-7.0, 2.0]]), adversarial, "none", torch.Generator())
    assert found.members.tolist() == [[0, 1, -1], [2, -1, -1]]


def test_ternary_gradients_that_are_alike_are_left_to_chance() -> None:
    adversarial = torch.tensor([[0.0, 0.0]] * 4 + [[1.0, -1.0]])
    victims = torch.cat([torch.zeros(200, 2), torch.tensor([[1.0, -1.0]])])
    found = match_gradients(victims, adversarial, "ternary", torch.Generator().manual_seed(0)).members
    assert (found[:, 1:] == -1).all()
    assert found[-1, 0] == 4
    assert len(found[:-1, 0].unique()) > 1
    assert int(found[:-1, 0].max()) < 4


# -- scores ----------------------------------------------------------------------------------------------------------------


def test_scores_by_hand() -> None:
    truth = torch.tensor([[1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 0, 0]], dtype=torch.bool)
    claims = claimed(torch.tensor([[0, -1], [0, 1], [-1, -1]]), torch.tensor([1, 2]), 4)
    assert claims.tolist() == [[False, True, False, False], [False, True, True, False], [False] * 4]
    found = score(claims, truth)
    assert found.precision == pytest.approx((1 + 0.5) / 2)  # the third victim has no claim
    assert found.recall == pytest.approx((0.5 + 0.5 + 0) / 3)
    assert found.f1 == pytest.approx(2 * 0.75 / 3 / (0.75 + 1 / 3))
    assert score(torch.zeros_like(truth), truth) == Scores(0.0, 0.0, 0.0)
    assert Scores.from_dict(found.to_dict()).recall == pytest.approx(1 / 3, abs=1e-6)


def test_misplaced_claims_by_hand() -> None:
    truth = torch.tensor([[1, 1, 0], [0, 0, 1]], dtype=torch.bool)
    claims = torch.tensor([[1, 0, 0], [0, 0, 0]], dtype=torch.bool)
    found = misplaced(claims, truth)
    assert found.precision == pytest.approx((1 + 0) / 2)  # right for the first, wrong for the second
    assert found.recall == pytest.approx((0.5 + 0 + 0 + 0) / 4)
    alike = torch.ones(2, 3, dtype=torch.bool)
    assert misplaced(alike, truth) == score(alike, truth)  # claims that know nothing lose nothing


def test_the_guess_claims_as_many_items_the_most_popular() -> None:
    claims = torch.tensor([[1, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0]], dtype=torch.bool)
    guess = popular(claims, torch.tensor([1, 5, 3, 5]))
    assert guess.int().tolist() == [[0, 1, 0, 0], [0, 1, 1, 1], [0, 0, 0, 0]]


# -- what is seen ----------------------------------------------------------------------------------------------------------


def test_a_row_of_the_exchange_is_what_the_search_takes_it_for(small_parties: list[vf.PartyData]) -> None:
    for gnn in ("gcn", "ggnn"):
        chosen = config(gnn=gnn, epochs=1)
        fakes = planted(small_parties, chosen)
        inside = RunInternals.of(trained(fakes, chosen))
        x = inside.neighbourhood(1).own
        truth, _ = neighbours(inside, fakes)
        row = {int(item): int(user) for user, item in zip(fakes.users, fakes.items, strict=True)}
        for user in range(fakes.honest):
            items = torch.nonzero(truth[user]).squeeze(1).tolist()
            if items and all(item in row for item in items):
                expected = SCALES[gnn](len(items)) * x[[row[item] for item in items]].sum(0)
                assert torch.allclose(x[user], expected, atol=1e-6)


def test_a_settled_exchange_is_what_a_synchronous_training_ends_with(
    small_parties: list[vf.PartyData],
) -> None:
    """Parameters that stand still: the exchange has settled in the third round."""
    chosen = config(batch=0, epochs=3, evaluate_every=3, lr=1e-30)
    run = vf.train(small_parties, chosen)
    inside = RunInternals.of(run)
    for p, others in enumerate(inside.others):
        found = compute(
            inside.model,
            inside.graphs[p],
            run.public,
            inside.private(p),
            chosen.training,
            exchange=inside.exchange,
            others=others,
        )
        assert torch.allclose(found.users, run.models[p].users, atol=1e-4)


def test_gradients_are_the_parties_own_and_protected_as_configured(attacked: tuple[Planted, vf.Run]) -> None:
    fakes, run = attacked
    inside = RunInternals.of(run)
    elsewhere = inside.of_users(inside.user_gradient(0))
    assert not elsewhere[fakes.honest :].any()  # adversaries have no rating there
    gradient = inside.user_gradient(1)
    assert inside.of_users(gradient)[fakes.honest :].any(1).all()
    released = inside.released(gradient, NoiseKey(simulated_secret(0, 0)))
    assert set(released.unique().tolist()) <= {-1.0, 0.0, 1.0}
    many = (
        torch.stack(
            [inside.released(gradient, NoiseKey(simulated_secret(seed, 0))) for seed in range(400)]
        ).mean(0)
        * 3
    )
    assert torch.allclose(
        inside.of_users(many), (inside.of_users(gradient) * 0.1).clamp(-0.5, 0.5), atol=0.35
    )


def test_the_mean_coefficient_is_over_edges(attacked: tuple[Planted, vf.Run]) -> None:
    fakes, _ = attacked
    run = trained(fakes, config(gnn="gat", epochs=1))
    run.public = torch.zeros_like(
        run.public
    )  # attention is even: a user with n neighbours gives each 1 / (1 + ratio n)
    inside = RunInternals.of(run)
    degree = inside.graphs[0].user_degree.flatten()
    expected = (degree / (1 + 3 * degree)).sum() / degree.sum()
    assert inside.mean_coefficient(0) == pytest.approx(float(expected), rel=1e-5)


def test_other_models_are_refused_with_a_reason(small_parties: list[vf.PartyData]) -> None:
    run = vf.train(small_parties, config(form="factors", epochs=1, **{"exchange": "off"}))
    with pytest.raises(ConfigError, match="propagation"):
        RunInternals.of(run)


# -- whole attacks ---------------------------------------------------------------------------------------------------------


def victims_of(fakes: Planted, run: vf.Run) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return choose_victims(neighbours(RunInternals.of(run), fakes)[0], 500, np.random.default_rng(0))


def test_with_projection_the_attack_finds_no_more_than_a_guess(attacked: tuple[Planted, vf.Run]) -> None:
    """Margin 0.05: F1 of 120 victims with about ten neighbours each is known to about 0.02."""
    fakes, run = attacked
    found = mount_paper_attacks(
        run, "verfedgnn", fakes, attacker=0, victims=victims_of(fakes, run), shares=SHARES
    )
    for share in SHARES:
        for attack in ("neighbourhood", "gradients"):
            judged = found[attack][f"{share:g}"]
            assert judged["f1"] <= judged["guess"]["f1"] + 0.05


@pytest.mark.parametrize("gnn", ["gcn", "ggnn"])
def test_exact_sums_show_every_user_with_one_or_two_items(
    small_parties: list[vf.PartyData], gnn: str
) -> None:
    kept = np.random.default_rng(0).random(len(small_parties[1].ratings)) < 0.3
    kept[:60] = True
    sparse = [
        replace(party, ratings=party.ratings.take(kept)) if p == 1 else party
        for p, party in enumerate(small_parties)
    ]
    chosen = config(gnn=gnn, **{"exchange": 0, "unprotected": ["projection"]})
    fakes = planted(sparse, chosen, share=1.0)
    run = trained(fakes, chosen)
    inside = RunInternals.of(run)
    truth, _ = neighbours(inside, fakes)
    few = np.flatnonzero(((truth.sum(1) >= 1) & (truth.sum(1) <= 2)).numpy())
    assert len(few) > 20
    found = mount_paper_attacks(run, "verfedgnn", fakes, attacker=0, victims=few, shares=(1.0,))
    for attack in ("neighbourhood", "exact"):  # the exchange is exact, so both see X
        assert found[attack]["1"]["precision"] > 0.99
        assert found[attack]["1"]["recall"] > 0.99


def test_fedpergnn_shows_exactly_the_adversaries_items(small_parties: list[vf.PartyData]) -> None:
    chosen = METHODS["fedpergnn"].configure(config(epochs=1))
    fakes = planted(small_parties, chosen)
    run = trained(fakes, chosen)
    victims = victims_of(fakes, run)
    found = mount_paper_attacks(run, "fedpergnn", fakes, attacker=0, victims=victims, shares=SHARES)[
        "neighbourhood"
    ]
    truth = neighbours(RunInternals.of(run), fakes)[0][victims]
    for share in SHARES:
        rated = fakes.items[: fakes.count(share)]
        assert found[f"{share:g}"]["precision"] == 1
        expected = float((truth[:, rated].sum(1) / truth.sum(1)).mean())
        assert found[f"{share:g}"]["recall"] == pytest.approx(expected, abs=1e-5)


def test_fedsage_generates_what_is_matched(small_parties: list[vf.PartyData]) -> None:
    chosen = METHODS["fedsage+"].configure(config(epochs=1))
    fakes = planted(small_parties, chosen)
    run = trained(fakes, chosen)
    found = mount_paper_attacks(
        run, "fedsage+", fakes, attacker=0, victims=victims_of(fakes, run), shares=(0.8,)
    )
    assert set(found) == {"neighbourhood", "exact", "gradients"}  # its gradients are open anyway
    assert RunInternals.of(run).generated(0).shape == (120 + 24, 6)
    with pytest.raises(ConfigError, match="the paper does not attack"):
        mount_paper_attacks(run, "central", fakes, attacker=0, victims=victims_of(fakes, run), shares=(0.8,))


# -- the paper's tables ----------------------------------------------------------------------------------------------------


def test_a_cell_leaves_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "SHARES", (0.1, 0.2))
    settings = (("training.batch", 0), ("training.epochs", 2), ("unprotected", "projection"))
    cell = AttackCell(("synthetic",), "verfedgnn", "gcn", 0, 6, settings, users=200)
    record = cell.run(Where(torch.device("cpu")))
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert record["key"] == cell.key() != super(AttackCell, cell).key()
    assert record["adversaries"] == 20
    assert set(record["attacks"]) == {"neighbourhood", "exact", "gradients", "open gradients"}
    assert all(list(found) == ["0.1", "0.2"] for found in record["attacks"].values())
    assert cell.run(Where(torch.device("cpu")))["attacks"] == record["attacks"]


def made_up(cell: AttackCell) -> Record:
    scores = {
        "precision": 1.0,
        "recall": 0.25,
        "f1": 0.4,
        "guess": {"precision": 0.5, "recall": 0.5, "f1": 0.5},
    }
    scores["misplaced"] = scores["guess"]
    attacks = {
        name: {f"{share:g}": scores for share in SHARES}
        for name in ("neighbourhood", "exact", "gradients", "open gradients")
    }
    environment = {"device": "here", "torch": "2"}
    about = {
        "data": list(cell.data),
        "data_sha256": "0" * 64,
        "seed": cell.seed,
        "commit": "c",
        "environment": environment,
    }
    return {**about, "attacks": attacks, "few": 0.5}


def test_tables_show_the_papers_values_beside_ours(tmp_path: Path) -> None:
    shared = set()
    for experiment in (TABLE3, TABLE4, TABLE5, TABLE7):
        wanted = experiment.cells(PaperScope())
        shared |= set(wanted)
        page = experiment.make({cell: made_up(cell) for cell in wanted}, PaperScope(), tmp_path).read_text(
            "utf-8"
        )
        assert "0.4000 ± 0.0000" in page
        assert (tmp_path / f"{experiment.name}.csv").is_file()
    assert len(shared) == 5 * (3 + 2 + 3)  # tables 3, 4 and 7 share trainings
    assert "| 0.5 | VerFedGNN | GGNN | without projection | 0.0511 ± 0.0125 |" in (
        tmp_path / "table4.md"
    ).read_text("utf-8")
    some = [cell for cell in TABLE3.cells(PaperScope()) if cell.seed < 3 or cell.method == "fedpergnn"]
    page = TABLE3.make({cell: made_up(cell) for cell in some}, PaperScope(), tmp_path).read_text("utf-8")
    assert "FedSage+ below FedPerGNN | 0 of 3 | not finished" in page  # seeds that both have
    quick = TABLE3.cells(PaperScope.quick())
    assert {cell.data for cell in quick} == {("ml-100k",)}
