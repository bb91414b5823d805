"""Protection of whole persons: group privacy of single ratings, and what is sent."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import verfedgnn as vf
from verfedgnn.privacy.accounting import person_epsilon
from verfedgnn.privacy.rating_dp import (
    MOST_PARTIES,
    item_unit,
    rating_epsilon,
    sampling_delta,
    sensitivity,
    total_variation,
    unit,
)
from verfedgnn.privacy.visibility import SENT_BY_PARTIES
from verfedgnn.protocol.messages import KINDS
from verfedgnn.runs.prepared_data import prepare

PRIVATE = vf.Config.preset("private")


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


def test_the_tables_of_both_parts_count() -> None:
    """There is noise on an item row, on a row of users at every party, and on validations."""
    config = PRIVATE
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
    tables = values * (MOST_PARTIES * per_value + per_item)
    assert training == pytest.approx((1 + math.exp(2.0)) * tables)
    assert both < 1e-20, "far below delta"
