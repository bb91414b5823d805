"""Users' means beside the neighbourhoods: what arrives is the sum over the other parties, and biases can start from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import verfedgnn as vf
from helpers import federation, same_model
from verfedgnn.config.sections import FRACTION_BITS
from verfedgnn.core.errors import Interrupted
from verfedgnn.core.rating_means import LARGEST_MEAN, USER_MEAN_COLUMNS
from verfedgnn.core.rating_scale import scale_unit
from verfedgnn.protocol.party.incoming import update_replica
from verfedgnn.protocol.round.replica import Replica
from verfedgnn.protocol.round.user_starts import PRIOR_WEIGHT, START_BITS, mean_scale
from verfedgnn.protocol.wire.fixed_point import from_fixed
from verfedgnn.runs.prepared_data import prepare
from verfedgnn.runs.start_from import read_start
from verfedgnn.training.local_runtime import local_federation
from verfedgnn.training.simple_models import fit_party_means
from verfedgnn.training.train import resume


def best(**values: Any) -> vf.Config:
    raters = 0 if "user_blocks" in values else 3
    return vf.Config.preset("best").with_values(
        {"dim": 4, "raters": raters, "lists": False, "epochs": 12, "evaluate_every": 4, **values}
    )


def expected_sums(parties: list[vf.PartyData], config: vf.Config) -> list[np.ndarray[Any, Any]]:
    """Return for every party the sum of what the others know, from their data in one place."""
    runtime = federation(parties, config)
    shares = []
    for party in runtime.parties.values():
        data = party.data
        shares.append(fit_party_means(data).share(scale_unit(data.scale)))
    total = sum(shares, np.zeros_like(shares[0]))
    return [total - share for share in shares]


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"bits": 12},
        {"bits": 12, "user_blocks": 3},
        {"bits": 32, "user_blocks": 2},
        {"exchange.mode": "exact", "masking": False, "bits": 32},
    ],
    ids=["16 bits", "12 bits", "12 bits, blocks", "32 bits, blocks", "exact"],
)
def test_a_party_receives_the_sum_of_the_others(
    small_parties: list[vf.PartyData], values: dict[str, Any]
) -> None:
    """Up to the rounding of each party's fixed-point numbers."""
    config = best(**values)
    run = vf.train(small_parties, config)
    assert run.others_means is not None
    step = mean_scale(config, 3) / 2 ** FRACTION_BITS[config.exchange.bits]
    for share, expected in zip(run.others_means, expected_sums(small_parties, config), strict=True):
        assert share is not None
        np.testing.assert_allclose(share.numpy(), expected, atol=2 * step)


@pytest.mark.parametrize("values", [{}, {"bits": 12, "user_blocks": 3}], ids=["16 bits", "12 bits, blocks"])
def test_one_by_one_is_stacked_to_the_bit(small_parties: list[vf.PartyData], values: dict[str, Any]) -> None:
    config = best(**values)
    together, single = (vf.train(small_parties, config, stack=stack) for stack in (True, False))
    assert together.others_means is not None
    assert single.others_means is not None
    for a, b in zip(together.others_means, single.others_means, strict=True):
        assert a is not None
        assert b is not None
        assert torch.equal(a, b)


def test_means_do_not_change_the_training(small_parties: list[vf.PartyData]) -> None:
    """The gate adds two columns to the exchange; public parameters stay bit-identical."""
    with_means, without = (
        vf.train(small_parties, best(gate=gate, from_means=False)) for gate in (True, False)
    )
    assert torch.equal(with_means.public, without.public)
    assert with_means.metrics["public"] == without.metrics["public"]
    assert without.others_means in (None, [None] * 3)
    assert with_means.metrics["bytes"]["up"] > without.metrics["bytes"]["up"]


def test_two_columns_travel_for_every_user(small_parties: list[vf.PartyData]) -> None:
    sizes = []
    for gate in (True, False):
        runtime = federation(small_parties, best(gate=gate, from_means=False))
        runtime.round()
        replies = runtime.coordinator.replies.values()
        sizes.append([reply.neighbourhoods.shape for reply in replies if reply.neighbourhoods is not None])
    for more, fewer in zip(*sizes, strict=True):
        assert more == (*fewer[:2], fewer[2] + USER_MEAN_COLUMNS)


def test_sums_fit_into_their_bits_whatever_the_ratings() -> None:
    """The largest mean of every party at once stays below the largest fixed-point number."""
    for bits in (12, 16, 32):
        config = best(bits=bits)
        largest = 2.0 ** (bits - 1 - FRACTION_BITS[bits])
        for parties in (2, 3, 10, 100):
            scale = mean_scale(config, parties)
            assert scale >= 1
            assert LARGEST_MEAN * parties / scale < largest


def test_a_resumed_training_has_the_same_sums(small_parties: list[vf.PartyData], tmp_path: Path) -> None:
    config = best(user_blocks=2, checkpoint_every=2)
    whole = vf.train(small_parties, config)
    rounds = 0

    def stop() -> bool:
        nonlocal rounds
        rounds += 1
        return rounds == 7

    with pytest.raises(Interrupted):
        vf.train(small_parties, config, out=tmp_path / "run", stop=stop)
    again = resume(tmp_path / "run")
    loaded = vf.Run.load(tmp_path / "run")
    for run in (again, loaded):
        assert run.others_means is not None
        assert whole.others_means is not None
        for a, b in zip(run.others_means, whole.others_means, strict=True):
            assert a is not None
            assert b is not None
            assert torch.equal(a, b)
        for mine, theirs in zip(run.models, whole.models, strict=True):
            same_model(mine, theirs)


def test_two_parties_receive_the_noised_means_of_the_other(small_parties: list[vf.PartyData]) -> None:
    """The noise on each number has the configured standard deviation; 240 draws stay within 25 % of it."""
    config = best().for_parties(2)
    run = vf.train(small_parties[:2], best())
    assert run.config.exchange.mode == "noised"
    assert run.others_means is not None
    scale = mean_scale(config, 2)
    for share, expected in zip(run.others_means, expected_sums(small_parties[:2], config), strict=True):
        assert share is not None
        noise = (share.numpy() - expected) / scale
        assert abs(noise.mean()) < 5 * 0.05 / np.sqrt(noise.size)
        assert 0.75 * 0.05 < noise.std() < 1.25 * 0.05


# -- biases that start at means --------------------------------------------------------------------------


@pytest.mark.parametrize("blocks", [1, 3])
def test_biases_start_at_federated_means_in_a_users_first_round(
    small_parties: list[vf.PartyData], blocks: int
) -> None:
    config = best(from_means=True, gate=False, user_blocks=blocks)
    runtime = federation(small_parties, config)
    shares = []
    for party in runtime.parties.values():
        means = fit_party_means(party.data)
        unit = scale_unit(party.data.scale)
        shares.append(means.share(unit))
        start = party.progress.private.parameters["item_bias"].squeeze(1)
        np.testing.assert_allclose(start.numpy(), means.item_offset / unit, rtol=1e-5)
    total = sum(shares, np.zeros_like(shares[0]))
    replica = runtime.coordinator.replica
    for round in range(1, blocks + 1):
        runtime.round()
        rows = replica.blocks.in_round(round).users
        expected = total[rows, 0] / (total[rows, 1] + PRIOR_WEIGHT)
        for copy in (replica.parameters, replica.average):
            assert copy is not None
            biases = replica.model.views(copy)["user_bias"][rows, 0]
            np.testing.assert_allclose(biases.numpy(), expected, atol=4 * mean_scale(config, 3) / 2**10)


def test_a_party_that_missed_the_first_rounds_reaches_the_same_start(
    small_parties: list[vf.PartyData],
) -> None:
    runtime = federation(small_parties, best(from_means=True, gate=False, user_blocks=2))
    coordinator = runtime.coordinator
    known = coordinator.replica
    late = Replica(
        known.config,
        known.model,
        known.items,
        known.ratings,
        known.parameters.clone(),
        known.accumulator.clone(),
        0,
    )
    for _ in range(3):
        runtime.round()
    coordinator.deliveries.parameters_round["party-0"] = 0
    message = coordinator.open()["party-0"]
    assert message.start_rounds == [1, 2]
    update_replica(late, message)
    assert late.digest() == coordinator.replica.digest()


def test_a_start_survives_an_interruption(small_parties: list[vf.PartyData], tmp_path: Path) -> None:
    config = best(from_means=True, user_blocks=3, gate=False, epochs=2)
    whole = vf.train(small_parties, config)
    rounds = 0

    def stop() -> bool:
        nonlocal rounds
        rounds += 1
        return rounds == 2

    with pytest.raises(Interrupted):
        vf.train(small_parties, config, out=tmp_path / "run", stop=stop)
    again = resume(tmp_path / "run")
    assert torch.equal(whole.public, again.public)


def test_a_continued_training_keeps_known_biases_and_starts_those_of_new_users(
    small_parties: list[vf.PartyData], tmp_path: Path
) -> None:
    config = best(from_means=True, gate=False)
    first = [vf.PartyData(party.name, party.ratings.select_users(np.arange(70))) for party in small_parties]
    vf.train(first, config, out=tmp_path / "run")
    start = read_start(tmp_path / "run", small_parties)
    assert start is not None
    runtime = local_federation(
        [each.input for each in prepare(small_parties, config, torch.device("cpu"))], config, start=start
    )
    replica = runtime.coordinator.replica
    before = replica.parameters.clone()
    new = replica.model.views(replica.accumulator)["user_bias"][:, 0] == 0
    assert 0 < new.sum() < len(new)
    runtime.round()
    message = runtime.coordinator.open()["party-0"]
    assert message.starts is not None
    starts = from_fixed(torch.from_numpy(message.starts), START_BITS)
    for name in ("user_bias", "rater_bias"):
        now = replica.model.views(replica.parameters)[name][:, 0]
        moved = (now - replica.model.views(before)[name][:, 0]).abs()
        assert torch.equal(now[new], starts[new])
        assert moved[~new].max() < 0.1 * starts.abs().max(), "one step, not a new start"


@pytest.mark.parametrize(
    "changes",
    [
        {"start_rounds": [1, 1]},
        {"start_rounds": [2]},
        {"start_rounds": []},
        {"starts": np.zeros(7, np.int16)},
        {"starts": None},
    ],
)
def test_a_party_refuses_biases_that_were_not_agreed_on(
    small_parties: list[vf.PartyData], changes: dict[str, Any]
) -> None:
    runtime = federation(small_parties, best(from_means=True, gate=False))
    runtime.round()
    (start, *_) = runtime.coordinator.open().values()
    party = next(iter(runtime.parties.values()))
    with pytest.raises(vf.ProtocolError, match="biases to start with"):
        party.handle(start.model_copy(update=changes))


def test_a_party_refuses_a_second_start(small_parties: list[vf.PartyData]) -> None:
    """A coordinator could otherwise overwrite trained biases in any round."""
    runtime = federation(small_parties, best(from_means=True, gate=False))
    runtime.round()
    runtime.round()
    (start, *_) = runtime.coordinator.open().values()
    party = next(iter(runtime.parties.values()))
    starts = np.zeros(party.data.users, np.int16)
    with pytest.raises(vf.ProtocolError, match="biases to start with"):
        party.handle(start.model_copy(update={"starts": starts, "start_rounds": [2]}))
