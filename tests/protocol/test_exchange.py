"""The named ways of exchanging neighbourhoods: the model they give, the noise they promise, what they refuse."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import verfedgnn as vf
from helpers import federation, same
from verfedgnn import split_items
from verfedgnn.core.key_stream import NoiseKey
from verfedgnn.core.random_streams import simulated_secret
from verfedgnn.core.vectors import clip_rows
from verfedgnn.data import pool_parties
from verfedgnn.gnn.model import Model
from verfedgnn.privacy.release_events import Release, compose_epsilon
from verfedgnn.privacy.skellam_noise import SkellamNoise, noised_sum_event
from verfedgnn.protocol.party.exchange_state import SentNeighbourhoods
from verfedgnn.protocol.party.incoming import read_neighbourhoods
from verfedgnn.protocol.party.policy import Policy
from verfedgnn.protocol.round.replica import Replica
from verfedgnn.protocol.wire.fixed_point import from_fixed, to_fixed
from verfedgnn.protocol.wire.messages import RoundReply, RoundStart

SIGMAS = 5
"""A statistical test fails a right implementation once in 1.7 million times."""


def best(**values: Any) -> vf.Config:
    return vf.Config.preset("best").with_values(
        {"epochs": 12, "list_epochs": 0.25, "evaluate_every": 3, "dim": 4, "gate": False} | values
    )


def test_masked_sums_are_exact_sums(small_parties: list[vf.PartyData]) -> None:
    masked = vf.train(small_parties, best())
    exact = vf.train(small_parties, best(masking=False, **{"exchange.mode": "exact"}))
    assert torch.equal(masked.public, exact.public)
    assert masked.metrics["test"] == exact.metrics["test"]


def test_only_sums_can_be_read(small_parties: list[vf.PartyData]) -> None:
    """A party that subtracts its own part from the sum that it receives has the sum of two others, and neither of them."""
    bare, hidden = federation(small_parties, best()), federation(small_parties, best(), policy=Policy())
    for _ in range(7):
        bare.round()
        hidden.round()
    for name in bare.parties:
        own, sent = (
            bare.parties[name].progress.exchange.sent[0],
            hidden.parties[name].progress.exchange.sent[0],
        )
        np.testing.assert_array_equal(own.values, sent.values)
    assert torch.equal(bare.coordinator.replica.parameters, hidden.coordinator.replica.parameters)
    np.testing.assert_array_equal(bare.coordinator.rows.sums[0].total, hidden.coordinator.rows.sums[0].total)
    parts = [party.progress.exchange.sent[0].values for party in hidden.parties.values()]
    received = hidden.coordinator.rows.sums[0].total
    for own, part in enumerate(parts):
        others = [other for place, other in enumerate(parts) if place != own]
        np.testing.assert_array_equal(received - part, sum(others))
        assert not any(((received - part) == other)[other != 0].mean() > 0.5 for other in others)


@pytest.mark.parametrize("mode", ["masked", "noised"])
def test_two_parties_need_noise(small_parties: list[vf.PartyData], mode: str) -> None:
    """A training adds it by itself; the protocol refuses masked sums of two without it."""
    noise = {"exchange.noise": 0.1, "row_clip": 1.0} if mode == "noised" else {}
    config = best(**{"exchange.mode": mode}, **noise)
    run = vf.train(small_parties[:2], config)
    assert run.config.exchange.mode == "noised"
    assert run.metrics["privacy"]["neighbourhoods"]["composed"]["epsilon"] > 0
    if mode == "masked":
        with pytest.raises(vf.ConfigError, match="a single party's matrix"):
            federation(small_parties[:2], config)


def test_a_party_refuses_a_masked_sum_of_two(small_parties: list[vf.PartyData]) -> None:
    runtime = federation(small_parties, best())
    start = next(iter(runtime.coordinator.open().values()))
    assert isinstance(start, RoundStart)
    first = next(iter(runtime.parties.values()))
    with pytest.raises(vf.ProtocolError, match="masked sum over only 2 parties"):
        first.begin(start.model_copy(update={"active": [0, 1]}))


def test_sums_travel_only_when_they_are_new(small_parties: list[vf.PartyData]) -> None:
    runtime = federation(small_parties, best(every=3))
    seen = []
    for _ in range(7):
        starts = runtime.coordinator.open()
        replies = {name: runtime.parties[name].handle(start) for name, start in starts.items()}
        for name, reply in replies.items():
            assert isinstance(reply, RoundReply)
            runtime.coordinator.receive(name, reply)
        start = next(iter(starts.values()))
        seen.append((start.exchange, start.neighbourhoods is not None))
        runtime.coordinator.close()
    assert seen == [
        (True, False),
        (False, True),
        (False, False),
        (True, False),
        (False, True),
        (False, False),
        (True, False),
    ]


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"every": 5},
        {"participation": 0.67},
        {"model.gnn": "ggnn"},
        {"model.gnn": "gat", "residual": True},
    ],
)
def test_resuming_changes_nothing(
    small_parties: list[vf.PartyData], tmp_path: Any, values: dict[str, Any]
) -> None:
    """Averages, the last sum, the last release: all is in the checkpoint."""
    mode = {} if values.get("participation") is None else {"exchange.mode": "projected"}
    config = best(**values, **mode)
    whole = vf.train(small_parties, config, out=tmp_path / "whole")
    rounds: list[int] = []
    with pytest.raises(vf.VerFedGNNError, match="stopped after round 7"):
        vf.train(
            small_parties,
            config,
            out=tmp_path / "cut",
            watch=lambda p: rounds.append(p.round),
            stop=lambda: len(rounds) == 7,
        )
    same(whole, vf.resume(tmp_path / "cut"))


def test_one_by_one_is_the_stack(small_parties: list[vf.PartyData]) -> None:
    stacked, single = (vf.train(small_parties, best(), stack=stack) for stack in (True, False))
    assert single.metrics["test"]["rmse"] == pytest.approx(stacked.metrics["test"]["rmse"], abs=2e-3)


@given(values=st.lists(st.floats(-40, 40, width=32), min_size=1, max_size=20), parties=st.integers(1, 30))
def test_sixteen_bits_round_and_cut_off(values: list[float], parties: int) -> None:
    given_values = np.array(values, np.float32)
    fixed = to_fixed(torch.from_numpy(given_values), parties, 16)
    assert fixed.dtype == torch.int16
    assert int(fixed.int().abs().max()) * parties <= 2**15 - 1
    limit = (2**15 - 1) // parties / 1024
    np.testing.assert_allclose(
        from_fixed(fixed, 16), np.clip(given_values, -limit, limit), atol=0.5 / 1024 + 1e-6
    )


def test_skellam_noise_has_its_variance_and_adds_up() -> None:
    shares = sum(
        SkellamNoise(25.0, NoiseKey(simulated_secret(0, party))).draw((200_000,)) for party in range(4)
    )
    assert isinstance(shares, np.ndarray)
    assert abs(shares.mean()) < SIGMAS * 10 / math.sqrt(len(shares))
    spread = shares.astype(float).var()
    assert abs(spread - 100) < SIGMAS * 100 * math.sqrt(2.1 / len(shares))


def test_noise_on_a_sum_is_what_was_asked_for(small_parties: list[vf.PartyData]) -> None:
    """What a party receives of the others is their sum plus noise of the configured size: its own is subtracted."""
    noise = {
        "exchange.mode": "noised",
        "exchange.noise": 0.5,
        "row_clip": 100.0,
        "exchange.bits": 32,
        "lr": 1e-9,
    }
    loud, quiet = (
        federation(small_parties, best(**noise)),
        federation(small_parties, best(**{"exchange.bits": 32, "lr": 1e-9})),
    )
    for runtime in (loud, quiet):
        for party in runtime.parties.values():
            party.progress.private.parameters["messages"].copy_(
                torch.linspace(-1, 1, party.progress.private.parameters["messages"].numel()).view(-1, 4)
            )
        runtime.round()
        runtime.round()
    for name in loud.parties:
        a, b = (
            loud.parties[name].progress.exchange.received[0],
            quiet.parties[name].progress.exchange.received[0],
        )
        assert a.others is not None
        assert b.others is not None
        difference = (a.others - b.others).double()
        count = difference.numel()
        assert abs(difference.std().item() - 0.5) < SIGMAS * 0.5 / math.sqrt(2 * count) + 0.01
        assert b.others.abs().max() > 0.1


@given(st.integers(0, 1000))
def test_rows_are_clipped_and_short_ones_left_alone(seed: int) -> None:
    x = torch.randn(5, 7, 3, generator=torch.Generator().manual_seed(seed))
    norms = clip_rows(x, 1.5).norm(dim=-1)
    torch.testing.assert_close(norms, x.norm(dim=-1).clamp(max=1.5))


def test_epsilon_of_large_noise_is_the_gaussian_mechanisms() -> None:
    """With a large variance Skellam is Gaussian: rho = l2^2 / (2 sigma^2), epsilon about rho + 2 sqrt(rho log 1/delta)."""
    event = noised_sum_event(noise=1.0, clip=1.0, columns=16, unit=1 << 20)
    found = compose_epsilon([Release("sums", 4, event)], 1e-6)
    rho = 4 / 2
    assert (
        0.8 * (rho + 2 * math.sqrt(rho * math.log(1e6))) < found <= rho + 2 * math.sqrt(rho * math.log(1e6))
    )
    assert compose_epsilon([Release("sums", 40, event)], 1e-6) > found


@pytest.mark.parametrize("mode", ["projected", "masked", "noised", "exact", "off"])
def test_every_mode_says_what_it_protects(small_parties: list[vf.PartyData], mode: str) -> None:
    noise = {"exchange.noise": 0.1, "row_clip": 1.0} if mode == "noised" else {}
    run = vf.train(small_parties, best(epochs=2, **{"exchange.mode": mode}, **noise))
    about = run.metrics["privacy"]["neighbourhoods"]
    words = {
        "projected": "not differential privacy",
        "masked": "nobody sees a single party's matrix",
        "noised": "epsilon",
        "exact": "none:",
        "off": "never",
    }
    assert words[mode] in about["guarantee"]
    assert ("per_round" in about) == (mode == "noised")


# -- a coordinator that does not keep to what was agreed on --------------------------------------------------------------------


def test_masks_do_not_cancel_for_parties_that_were_told_other_totals(
    small_parties: list[vf.PartyData],
) -> None:
    """A coordinator that makes the others' gradients vanish by a false number of ratings is left with noise."""
    runtime = federation(small_parties, best(), policy=Policy())
    parties = list(runtime.parties.values())
    for party in parties[1:]:
        honest = party.replica
        lied = Replica(
            honest.config,
            honest.model,
            honest.items,
            2**40,
            honest.parameters,
            honest.accumulator,
            honest.round,
        )
        party.replica = lied
    with pytest.raises(vf.ProtocolError, match="do not add up"):
        runtime.round()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"trip": 2, "train": False}, "not agreed on"),
        ({"round": 8}, "out of turn"),
        ({"updates": np.zeros((0, 3), np.uint8)}, "of nobody"),
        ({"active": [0, 1]}, "only 2 parties"),
    ],
)
def test_what_was_not_agreed_on_is_refused(
    small_parties: list[vf.PartyData], change: dict[str, Any], error: str
) -> None:
    runtime = federation(small_parties, best())
    start = next(iter(runtime.coordinator.open().values()))
    party = next(iter(runtime.parties.values()))
    with pytest.raises(vf.ProtocolError, match=error):
        party.begin(start.model_copy(update=change))


def test_masked_sums_are_over_everybody_or_named_unprotected(small_parties: list[vf.PartyData]) -> None:
    with pytest.raises(vf.ConfigError, match='unprotected="sums"'):
        vf.train(split_items(pool_parties(small_parties), parties=5, seed=1), best(participation=0.8))
    run = vf.train(
        split_items(pool_parties(small_parties), parties=5, seed=1),
        best(participation=0.8, unprotected="sums", epochs=2),
    )
    assert run.metrics["privacy"]["neighbourhoods"]["guarantee"].startswith("none")


def test_every_rating_is_an_edge_also_with_the_papers_propagation(small_parties: list[vf.PartyData]) -> None:
    """The order of edges and of ratings must not be taken for the same where it is not."""
    one, other = (
        vf.train(
            small_parties, vf.Config.preset("paper", batch=0, epochs=5, evaluate_every=1, threshold=threshold)
        )
        for threshold in ("all", 0.5)
    )
    assert one.metrics["test"] == other.metrics["test"]


def test_sixteen_bits_are_subtracted_modulo() -> None:
    start = RoundStart.model_construct(
        neighbourhoods=np.array([[[-32636]]], np.int16),
        neighbourhood_parties=[0, 1],
        neighbourhood_trip=(1, 0),
    )
    config = best(bits=16)
    replica = Replica.initial(config, Model(config.model, 1), [1, 1], 1, 3.0, torch.device("cpu"))
    own = SentNeighbourhoods((1, 0), np.array([[[32700]]], np.int16))
    read = read_neighbourhoods(start, 0, replica, own=own, last=None)
    assert read.others is not None
    assert read.others.item() == pytest.approx(200 / 1024)
