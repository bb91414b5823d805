"""A coordinator that keeps something of a forgotten user in the start of a training is noticed."""

from __future__ import annotations

import pytest
import torch

import verfedgnn as vf
from verfedgnn.gnn.model import Model
from verfedgnn.protocol.round.replica import Replica
from verfedgnn.protocol.round.start_state import PublicStart

USERS = 9
ROW = 3


def start(preset: str) -> tuple[PublicStart, Replica]:
    """Return an earlier training with random parameters, and a replica that starts from it without one user."""
    config = vf.Config.preset(preset, dim=4)
    model = Model(config.model, USERS)
    random = torch.Generator().manual_seed(1)
    earlier = PublicStart(torch.randn(model.size, generator=random), torch.ones(model.size), USERS)
    replica = Replica.initial(config, model, [5, 5, 5], 40, 3.5, torch.device("cpu"))
    earlier.load_into(replica, [ROW])
    return earlier, replica


@pytest.mark.parametrize("preset", ["best", "paper"])
def test_an_honest_start_is_accepted(preset: str) -> None:
    earlier, replica = start(preset)
    assert earlier.matches(replica, [ROW])
    assert not earlier.matches(replica), "only if the row is said to be forgotten"


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_no_table_may_keep_a_forgotten_row_or_a_share_of_it(share: float) -> None:
    earlier, replica = start("best")
    names = replica.model.per_user
    assert {"users", "user_bias", "rater_users", "rater_values", "rater_marks", "rater_bias"} == set(names)
    for name in names:
        kept = replica.parameters.clone()
        replica.model.views(replica.parameters)[name][ROW] = (
            share * replica.model.views(earlier.parameters)[name][ROW]
        )
        if replica.average is not None:
            replica.average.copy_(replica.parameters)
        assert not earlier.matches(replica, [ROW]), name
        replica.parameters.copy_(kept)
        if replica.average is not None:
            replica.average.copy_(kept)
    assert earlier.matches(replica, [ROW])


def test_neither_the_average_nor_the_optimiser_may_keep_it() -> None:
    earlier, replica = start("best")
    assert replica.average is not None
    before = replica.average.clone()
    replica.model.views(replica.average)["users"][ROW] = 1.0
    assert not earlier.matches(replica, [ROW])
    replica.average.copy_(before)
    replica.model.views(replica.accumulator)["rater_values"][ROW] = 1.0
    assert not earlier.matches(replica, [ROW])
