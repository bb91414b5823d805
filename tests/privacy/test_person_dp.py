"""Protection of whole persons: group privacy of single ratings, the option that limits what a user contributes, and what is sent."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import verfedgnn as vf
from helpers import federation
from verfedgnn.core.pairs import Pairs, PartyInput
from verfedgnn.data.splits import cap_ratings
from verfedgnn.privacy.accounting import person_epsilon
from verfedgnn.privacy.rating_dp import (
    MOST_PARTIES,
    fit_budget,
    item_unit,
    rating_epsilon,
    ratings_cap,
    sampling_delta,
    sensitivity,
    total_variation,
    unit,
)
from verfedgnn.privacy.visibility import SENT_BY_PARTIES
from verfedgnn.protocol.messages import KINDS
from verfedgnn.protocol.party import clip_contributions
from verfedgnn.protocol.party_state import LOCAL, PartySetup
from verfedgnn.runs.prepared_data import prepare

PRIVATE = vf.Config.preset("private")
USERS = PRIVATE.with_values({"gradients.user_ratings": 16})


def epsilon(training: int, validation: int = 0, config: vf.Config = PRIVATE) -> float:
    return person_epsilon(config, training=training, validation=validation, rounds=40, validations=4)


def test_a_person_with_one_rating_has_the_epsilon_of_a_rating() -> None:
    assert epsilon(1) == pytest.approx(rating_epsilon(PRIVATE, rounds=40, validations=0))
    assert epsilon(0, 1) < epsilon(1) < epsilon(1, 1)


def test_epsilon_of_a_person_grows_faster_than_the_number_of_ratings() -> None:
    """It is more than k times that of one rating, and less than that of k squared times as many rounds on both matrices."""
    single = epsilon(1)
    assert 10 * single < epsilon(10)
    assert epsilon(10) < person_epsilon(PRIVATE, training=1, validation=0, rounds=4000, validations=0)


def test_a_private_run_states_what_it_promises_to_persons(small_parties: list[vf.PartyData]) -> None:
    config = PRIVATE.with_values({"training.epochs": 2})
    privacy = vf.train(small_parties, config).metrics["privacy"]
    persons = privacy["persons"]
    assert set(persons["parties"]) == {party.name for party in small_parties}
    for party in prepare(small_parties, config, torch.device("cpu")):
        stated = persons["parties"][party.party.name]
        assert stated["largest"]["training"] == int(np.bincount(party.train.user.numpy()).max())
        assert (
            stated["largest"]["epsilon"]
            > stated["median"]["epsilon"]
            > privacy["gradients"]["composed"]["epsilon"]
        )
    assert "for all ratings of one user at a party, epsilon" in persons["guarantee"]
    assert "persons" not in vf.train(small_parties, vf.Config.preset("paper", epochs=1)).metrics["privacy"]


# -- what leaves a party ---------------------------------------------------------------------------------------------------


SENT_BY_COORDINATOR = frozenset(
    [
        "Welcome",
        "Waiting",
        "ShareRequest",
        "RoundShares",
        "RoundStart",
        "Survivors",
        "Finish",
        "MembersPage",
        "AlignStart",
        "UserRows",
    ]
)
"""Messages that the coordinator computes from what the parties sent. (Both sides send `Refused`.)"""


def test_every_field_that_a_party_sends_is_classified() -> None:
    """A new message, or a new field, fails here until somebody says how it is protected."""
    known = {kind.__name__: set(kind.model_fields) for kind in KINDS.values()}
    assert set(known) == set(SENT_BY_PARTIES) | SENT_BY_COORDINATOR
    assert not set(SENT_BY_PARTIES) & SENT_BY_COORDINATOR
    for message, fields in SENT_BY_PARTIES.items():
        assert set(fields) == known[message]


def test_a_private_run_lists_what_was_sent(small_parties: list[vf.PartyData]) -> None:
    sent = vf.train(small_parties, PRIVATE.with_values({"training.epochs": 1})).metrics["privacy"]["sent"]
    mechanisms = {f"{row['message']}.{row['field']}": row["mechanism"] for row in sent}
    assert "accounted as user gradients" in mechanisms["RoundReply.gradient"]
    assert mechanisms["Hello.ratings"] == "constant: 0"
    assert len(mechanisms) == sum(map(len, SENT_BY_PARTIES.values()))


# -- protection of users ---------------------------------------------------------------------------------------------------


@given(st.integers(0, 50), st.integers(1, 12), st.integers(0, 19))
def test_removing_a_user_leaves_the_capped_ratings_of_all_others(seed: int, most: int, gone: int) -> None:
    table = vf.read_ratings("synthetic", users=20, items=30, ratings=220, seed=seed)
    chosen = np.arange(len(table)) % 3 > 0
    kept = cap_ratings(table, chosen, most, seed=seed)
    counts = np.bincount(table.user[kept], minlength=20)
    assert (counts == np.minimum(np.bincount(table.user[chosen], minlength=20), most)).all()
    assert not (kept & ~chosen).any()
    others = table.user != gone
    again = cap_ratings(table.take(others), chosen[others], most, seed=seed)
    assert (again == kept[others]).all()


def gradients(parties: list[vf.PartyData], config: vf.Config) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Public gradient before noise and private gradients of the first party in the first round."""
    runtime = federation(parties, config)
    party = next(iter(runtime.parties.values()))
    seen: list[Any] = []
    step = party.release

    def record(message: Any, computed: Any) -> Any:
        seen.append({name: value.clone() for name, value in computed.private_gradients.items()})
        return step(message, computed)

    release = party.protect_gradient

    def released(gradient: torch.Tensor, *rest: Any) -> Any:
        seen.append(gradient.clone())
        return release(gradient, *rest)

    party.release = record  # type: ignore[method-assign]
    party.protect_gradient = released  # type: ignore[method-assign]
    runtime.round()
    return clip_contributions(seen[1], party.setup), seen[0]


@pytest.mark.parametrize("most", [1, 4, 50])
def test_a_user_moves_both_gradients_by_at_most_delta(small_parties: list[vf.PartyData], most: int) -> None:
    """All ratings of the most active user at a party, with and without."""
    config = USERS.with_values({"gradients.user_ratings": most, "split.kind": "rating"})  # withholds nobody
    first = small_parties[0].ratings
    person = int(np.bincount(first.user).argmax())
    without = [vf.PartyData(small_parties[0].name, first.take(first.user != person)), *small_parties[1:]]
    (public_a, own_a), (public_b, own_b) = (gradients(each, config) for each in (small_parties, without))
    limit = sensitivity(config) * (1 + 1e-4)
    assert 0 < float((public_a - public_b).norm()) <= limit
    moved = torch.cat([own_a[name] - own_b[name] for name in ("items", "item_bias")], 1)
    assert 0 < float(moved.norm()) <= limit
    assert limit == pytest.approx(sensitivity(PRIVATE) * math.sqrt(most), rel=1e-3)


def test_a_validation_counts_each_user_once(small_parties: list[vf.PartyData]) -> None:
    config = USERS.with_values({"gradients.noise_multiplier": 1e-6, "training.evaluate_every": 1})
    runtime = federation(small_parties, config)
    runtime.round()
    for name, reply in runtime.coordinator.replies.items():
        assert reply.count == len(runtime.parties[name].data.valid.user.unique())


def test_a_budget_for_users_composes_both_parts() -> None:
    chosen = fit_budget(USERS, wanted=4.0)
    spent = rating_epsilon(chosen, rounds=40, validations=4)
    assert 3.95 < spent <= 4.0
    assert spent > rating_epsilon(chosen.with_values({"gradients.user_ratings": 0}), rounds=40, validations=4)


@pytest.mark.parametrize("config", [PRIVATE, USERS], ids=["rating", "user"])
def test_the_tables_of_both_parts_count(config: vf.Config) -> None:
    """A user has ratings in both parts, and noise on K item rows, on one row of users at every party, and on validations."""
    training, validation, both = (
        sampling_delta(config, rounds=rounds, validations=validations, epsilon=2.0)
        for rounds, validations in ((40, 0), (0, 4), (40, 4))
    )
    assert training > 0
    assert validation > 0
    assert both == pytest.approx(training + validation, rel=1e-12)
    z = config.gradients.noise_multiplier  # type: ignore[union-attr]
    per_value = total_variation((z * sensitivity(config) * unit(config)) ** 2)
    per_item = total_variation((z * sensitivity(config) * item_unit(config)) ** 2)
    values = 40 * (config.model.dim + config.model.biases)
    tables = values * (MOST_PARTIES * per_value + (ratings_cap(config) or 1) * per_item)
    assert training == pytest.approx((1 + math.exp(2.0)) * tables)
    assert both < 1e-20, "far below delta"


def test_rows_within_the_limit_are_not_clipped() -> None:
    """The l2 norm of a user's factors and bias together is what counts."""
    pairs = Pairs(torch.tensor([0]), torch.tensor([0]), torch.tensor([3.0]))
    setup = PartySetup(
        PartyInput("p", 2, 1, (1.0, 5.0), pairs, pairs, 1), USERS, bytes(32), torch.device("cpu"), LOCAL
    )
    limit = sensitivity(USERS)
    gradient = torch.zeros(setup.model.size)
    views = setup.model.views(gradient)
    views["users"][0, 0] = 3 * limit
    views["user_bias"][0] = 4 * limit
    views["users"][1, 0] = limit / 2
    clipped = setup.model.views(clip_contributions(gradient, setup))
    assert float(clipped["users"][0, 0]) == pytest.approx(0.6 * limit)
    assert float(clipped["user_bias"][0]) == pytest.approx(0.8 * limit)
    assert torch.equal(clipped["users"][1], views["users"][1])
