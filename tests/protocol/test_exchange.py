"""The ways of exchanging neighbourhoods: the sums they give, what they refuse, and how large messages get."""

from __future__ import annotations

import math
from copy import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import verfedgnn as vf
from helpers import config, federation, same
from verfedgnn.core.graph import clip_rows
from verfedgnn.core.key_stream import NoiseKey
from verfedgnn.core.random_streams import simulated_secret
from verfedgnn.gnn.model import Model
from verfedgnn.privacy.rating_dp import SkellamNoise
from verfedgnn.protocol.messages import RoundReply, RoundStart
from verfedgnn.protocol.party import read_neighbourhoods
from verfedgnn.protocol.party_state import LOCAL, Policy, ReceivedNeighbourhoods, SentNeighbourhoods
from verfedgnn.protocol.replica import Replica
from verfedgnn.training.local_runtime import LocalRuntime

OPEN = {"exchange": 0, "unprotected": ["projection"]}
SIGMAS = 5
"""A statistical test fails a right implementation once in 1.7 million times."""


def masked(**values: Any) -> vf.Config:
    return config(**({"batch": 0, "epochs": 12, "evaluate_every": 3, "masking": True} | values))


def best(**values: Any) -> vf.Config:
    return vf.Config.preset(
        "best", **({"epochs": 8, "model.dim": 8, "raters": 4, "gate": False, "lists": False} | values)
    )


def rounds(runtime: LocalRuntime, count: int = 7) -> LocalRuntime:
    for _ in range(count):
        runtime.round()
    return runtime


@pytest.mark.parametrize(
    "chosen",
    [masked(), masked(model="gat"), masked(**OPEN), best(), vf.Config.preset("private", epochs=8)],
)
def test_masks_cancel(small_parties: list[vf.PartyData], chosen: vf.Config) -> None:
    bare, hidden = (rounds(federation(small_parties, chosen, policy=each)) for each in (LOCAL, Policy()))
    assert torch.equal(bare.coordinator.replica.parameters, hidden.coordinator.replica.parameters)


def test_only_sums_can_be_read(small_parties: list[vf.PartyData]) -> None:
    """A party that subtracts its own part from the sum that it receives has the sum of two others, and neither of them."""
    chosen = masked(**OPEN)
    bare, hidden = (rounds(federation(small_parties, chosen, policy=each)) for each in (LOCAL, Policy()))
    parts = []
    for name in bare.parties:
        own, sent = bare.parties[name].progress.sent, hidden.parties[name].progress.sent
        assert own is not None
        assert sent is not None
        np.testing.assert_array_equal(own.values, sent.values)
        parts.append(sent.values)
    sums = [runtime.coordinator.neighbourhood_sum for runtime in (bare, hidden)]
    np.testing.assert_array_equal(sums[0].total, sums[1].total)
    for own, part in enumerate(parts):
        others = [other for place, other in enumerate(parts) if place != own]
        left = sums[1].total - part
        np.testing.assert_array_equal(left, sum(others))
        assert not any((left == other)[other != 0].mean() > 0.5 for other in others)


def test_sums_travel_only_when_they_are_new(small_parties: list[vf.PartyData]) -> None:
    """With two parties of three in a round, a party that did not take part still has the last sum it was told."""
    runtime = federation(small_parties, config(batch=0, epochs=9, evaluate_every=1, participation=0.67))
    for _ in range(7):
        shared = runtime.coordinator.neighbourhood_sum
        starts = runtime.coordinator.open()
        assert len(starts) == 3, "all validate"
        for name, start in starts.items():
            assert (start.neighbourhoods is None) == (not shared.parties)
            reply = runtime.parties[name].handle(start)
            assert isinstance(reply, RoundReply)
            runtime.coordinator.receive(name, reply)
        runtime.coordinator.close()
    runtime.coordinator.open()
    again = runtime.coordinator.open()  # a repeated round tells again, since nobody has replied
    assert all(start.neighbourhoods is not None for start in again.values())


@pytest.mark.parametrize(
    "values",
    [
        {"masking": True},
        {"participation": 0.67},
        {"model": "ggnn"},
        {"model": "gat"},
    ],
)
def test_resuming_changes_nothing(
    small_parties: list[vf.PartyData], tmp_path: Any, values: dict[str, Any]
) -> None:
    """The last sum, the own part of it, Adagrad's sums: all is in the checkpoint."""
    chosen = config(batch=0, epochs=12, evaluate_every=3, **values)
    whole = vf.train(small_parties, chosen, out=tmp_path / "whole")
    seen: list[int] = []
    with pytest.raises(vf.VerFedGNNError, match="stopped after round 7"):
        vf.train(
            small_parties,
            chosen,
            out=tmp_path / "cut",
            watch=lambda p: seen.append(p.round),
            stop=lambda: len(seen) == 7,
        )
    same(whole, vf.resume(tmp_path / "cut"))


def test_skellam_noise_has_its_variance_and_adds_up() -> None:
    shares = sum(
        SkellamNoise(25.0, NoiseKey(simulated_secret(0, party))).draw((200_000,)) for party in range(4)
    )
    assert isinstance(shares, np.ndarray)
    assert abs(shares.mean()) < SIGMAS * 10 / math.sqrt(len(shares))
    spread = shares.astype(float).var()
    assert abs(spread - 100) < SIGMAS * 100 * math.sqrt(2.1 / len(shares))


@given(st.integers(0, 1000))
def test_rows_are_clipped_and_short_ones_left_alone(seed: int) -> None:
    x = torch.randn(5, 7, 3, generator=torch.Generator().manual_seed(seed))
    norms = clip_rows(x, 1.5).norm(dim=-1)
    torch.testing.assert_close(norms, x.norm(dim=-1).clamp(max=1.5))


@pytest.mark.parametrize(
    ("chosen", "words"),
    [({}, "not differential privacy"), (OPEN, "none:"), ({"exchange": "off"}, "never")],
)
def test_every_exchange_says_what_it_protects(
    small_parties: list[vf.PartyData], chosen: dict[str, Any], words: str
) -> None:
    run = vf.train(small_parties, masked(epochs=2, **chosen))
    about = run.metrics["privacy"]["neighbourhoods"]
    assert words in about["guarantee"]
    assert "per_round" not in about


# -- a coordinator that does not keep to what was agreed on --------------------------------------------------------------------


@pytest.mark.parametrize("chosen", [masked(), best()])
def test_masks_do_not_cancel_for_parties_that_were_told_other_totals(
    small_parties: list[vf.PartyData], chosen: vf.Config
) -> None:
    """A coordinator that makes the others' gradients vanish by a false number of ratings is left with noise."""
    honest, lied = (federation(small_parties, chosen, policy=Policy()) for _ in range(2))
    for party in list(lied.parties.values())[1:]:
        party.replica = copy(party.replica)
        party.replica.ratings = 2**40
    honest.round()
    if chosen.gradients.mechanism == "ternary":
        with pytest.raises(vf.ProtocolError, match="do not add up"):
            lied.round()
        return
    lied.round()
    true, found = (each.coordinator.updates[-1].total for each in (honest, lied))
    assert (true != found)[true != 0].mean() > 0.9


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"round": 80}, "rounds were agreed on"),
        ({"updates": np.zeros((0, 3), np.uint8)}, "of nobody"),
        ({"active": [0, 7]}, "parties that do not exist"),
        ({"neighbourhoods": np.zeros((2, 3, 4), np.int32)}, "neighbourhoods of shape"),
    ],
)
def test_what_was_not_agreed_on_is_refused(
    small_parties: list[vf.PartyData], change: dict[str, Any], error: str
) -> None:
    runtime = federation(small_parties, masked())
    start = next(iter(runtime.coordinator.open().values()))
    party = next(iter(runtime.parties.values()))
    with pytest.raises(vf.ProtocolError, match=error):
        party.answer_round(start.model_copy(update=change))


def test_a_party_refuses_a_rounded_sum_without_all_parties(small_parties: list[vf.PartyData]) -> None:
    runtime = federation(small_parties, best())
    start = next(iter(runtime.coordinator.open().values()))
    party = next(iter(runtime.parties.values()))
    with pytest.raises(vf.ProtocolError, match="a sum over 2 parties, fewer than the agreed 3"):
        party.answer_round(start.model_copy(update={"active": [0, 1]}))


def test_neighbourhoods_that_were_not_agreed_on_are_refused(small_parties: list[vf.PartyData]) -> None:
    runtime = federation(small_parties, best())
    start = next(iter(runtime.coordinator.open().values()))
    party = next(iter(runtime.parties.values()))
    with pytest.raises(vf.ProtocolError, match="neighbourhoods"):
        party.answer_round(start.model_copy(update={"neighbourhoods": np.zeros((1, 3, 4), np.int32)}))


def test_every_rating_is_an_edge_also_with_the_papers_propagation(small_parties: list[vf.PartyData]) -> None:
    """The order of edges and of ratings must not be taken for the same where it is not."""
    one, other = (
        vf.train(
            small_parties, vf.Config.preset("paper", batch=0, epochs=5, evaluate_every=1, threshold=threshold)
        )
        for threshold in ("all", 0.5)
    )
    assert one.metrics["test"] == other.metrics["test"]


def test_a_sum_is_subtracted_modulo_its_bits() -> None:
    start = RoundStart.model_construct(
        neighbourhoods=np.array([[[-(2**31) + 100]]], np.int32),
        neighbourhood_parties=[0, 1],
        neighbourhood_round=1,
    )
    chosen = config()
    replica = Replica(chosen, Model(chosen.model, 1), [1, 1], 1, 3.0, torch.device("cpu"))
    own = SentNeighbourhoods(1, np.array([[[2**31 - 200]]], np.int32))
    read = read_neighbourhoods(start, 0, replica, sent=own, last=ReceivedNeighbourhoods())
    assert read.others is not None
    assert read.others.item() == pytest.approx(300 / 2**20)


# -- sizes ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chosen", [config(epochs=9), config(participation=0.67), best()])
def test_no_array_is_larger_than_its_receiver_unpacks(
    small_parties: list[vf.PartyData], chosen: vf.Config
) -> None:
    runtime = federation(small_parties, chosen)
    coordinator = runtime.coordinator
    told, sent = [], []
    for _ in range(8):
        starts = coordinator.open()
        replies = {name: runtime.parties[name].answer_round(start) for name, start in starts.items()}
        told += [array for start in starts.values() for array in (start.updates, start.neighbourhoods)]
        sent += [array for reply in replies.values() for array in (reply.gradient, reply.neighbourhoods)]
        for name, reply in replies.items():
            coordinator.receive(name, reply)
        coordinator.close()
    largest = [max(array.nbytes for array in arrays if array is not None) for arrays in (told, sent)]
    assert largest[1] <= coordinator.largest_array <= 8 * 4 * coordinator.model.size
    for candidate in runtime.candidates.values():
        assert largest[0] <= candidate.largest_array <= 8 * 4 * candidate.setup.model.size
