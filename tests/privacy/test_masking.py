"""Masked sums: exact cancellation, nothing to read in a single message, the same model to the bit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import verfedgnn as vf
from helpers import config, federation
from verfedgnn.privacy.masking import GRADIENT, NEIGHBOURHOOD, Masker
from verfedgnn.protocol.party.policy import Policy
from verfedgnn.protocol.round.replica import parameters_digest


def circle(count: int) -> list[Masker]:
    maskers = [Masker() for _ in range(count)]
    for index, masker in enumerate(maskers):
        masker.derive_secrets(index, [m.public for m in maskers])
    return maskers


@settings(max_examples=40)
@given(
    data=st.data(), count=st.integers(2, 6), kind=st.sampled_from(["i1", "i2", "i4"]), size=st.integers(0, 30)
)
def test_masks_cancel_exactly_in_the_sum_of_those_who_take_part(
    data: st.DataObject, count: int, kind: str, size: int
) -> None:
    active = sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=2)))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    maskers, limit = circle(count), np.iinfo(kind).max // count
    values = {i: rng.integers(-limit, limit + 1, size).astype(kind) for i in active}
    total = np.zeros(size, kind)
    for i in active:
        total += maskers[i].mask(values[i], active, round=3, trip=0, use=GRADIENT)
    np.testing.assert_array_equal(total, sum(values.values()))


def test_a_message_alone_is_uniform() -> None:
    """Chi-square over byte values of 200,000 masked zeros: 255 degrees of freedom, a chance of 1e-6 to fail with fresh keys."""
    first, *_ = circle(3)
    masked = first.mask(np.zeros(200_000, np.int8), [0, 1, 2], round=1, trip=0, use=GRADIENT).view(np.uint8)
    counts = np.bincount(masked, minlength=256)
    chi_square = float(((counts - 200_000 / 256) ** 2 / (200_000 / 256)).sum())
    assert chi_square < 255 + 5.5 * math.sqrt(2 * 255)


def test_no_stream_is_used_twice() -> None:
    first, *_ = circle(2)
    zeros = np.zeros(64, np.int32)
    uses = [(r, t, u) for r in (1, 2) for t in (0, 1) for u in (GRADIENT, NEIGHBOURHOOD)]
    seen = {first.mask(zeros, [0, 1], round=r, trip=t, use=u).tobytes() for r, t, u in uses}
    again, *_ = circle(2)
    seen.add(again.mask(zeros, [0, 1], round=1, trip=0, use=GRADIENT).tobytes())
    assert len(seen) == len(uses) + 1


def test_keys_that_are_not_the_parties_own_are_refused() -> None:
    masker, other = Masker(), Masker()
    with pytest.raises(vf.ProtocolError, match="not those of the parties"):
        masker.derive_secrets(0, [other.public, masker.public])
    with pytest.raises(vf.ProtocolError, match="not those of the parties"):
        masker.derive_secrets(0, [masker.public, masker.public])
    with pytest.raises(vf.ProtocolError, match="not usable"):
        masker.derive_secrets(0, [masker.public, "00" * 32])


def test_the_coordinator_never_holds_what_a_party_computed(small_parties: list[vf.PartyData]) -> None:
    """Same seed with and without masks: what arrives differs in every party's message, and only the sums agree."""
    plain, masked = (
        federation(small_parties, config()),
        federation(small_parties, config(masking=True), policy=Policy()),
    )
    for _ in range(3):
        plain.round()
        masked.round()
        for name in plain.parties:
            bare, hidden = plain.coordinator.replies[name], masked.coordinator.replies[name]
            assert bare.neighbourhoods is not None
            assert hidden.neighbourhoods is not None
            assert hidden.gradient is not None
            assert (bare.neighbourhoods == hidden.neighbourhoods).mean() < 0.01
            assert np.abs(hidden.gradient.astype(int)).max() > 3
        np.testing.assert_array_equal(
            plain.coordinator.neighbourhoods[0].total, masked.coordinator.neighbourhoods[0].total
        )
        assert torch.equal(plain.coordinator.replica.parameters, masked.coordinator.replica.parameters)


@pytest.mark.parametrize("values", [{}, {"participation": 0.67}, {"refresh": 1}, {"model": "ggnn"}])
def test_the_model_is_the_same_to_the_bit(small_parties: list[vf.PartyData], values: dict[str, Any]) -> None:
    plain, masked = (
        vf.train(small_parties, vf.Config.preset("paper", batch=400, epochs=3, masking=masking, **values))
        for masking in (False, True)
    )
    assert torch.equal(plain.public, masked.public)
    assert plain.metrics["test"] == masked.metrics["test"]
    assert masked.metrics["bytes"]["up"] > plain.metrics["bytes"]["up"]
    assert "sums" in masked.metrics["privacy"]["masking"]


def test_a_missing_or_forged_part_is_noticed(small_parties: list[vf.PartyData]) -> None:
    runtime = federation(small_parties, config(masking=True), policy=Policy())
    coordinator = runtime.coordinator
    starts = coordinator.open()
    for name in list(starts)[:2]:
        reply = runtime.parties[name].handle(starts[name])
        assert reply is not None
        coordinator.receive(name, reply)
    with pytest.raises(vf.ProtocolError, match="do not add up"):
        coordinator.close()


def test_what_masks_cannot_do_is_refused(small_parties: list[vf.PartyData]) -> None:
    with pytest.raises(vf.ConfigError, match="masking needs integers"):
        vf.Config.preset("paper", masking=True, mechanism="laplace")
    with pytest.raises(vf.ConfigError, match="single active party"):
        vf.train(small_parties, vf.Config.preset("paper", masking=True, participation=0.3))


def test_parameters_that_share_64_bits_of_their_hash_have_other_masks() -> None:
    """Two vectors whose SHA-256 begins with the same 16 hex digits, found by search; once, this was the whole digest."""
    first = torch.tensor([36670.0, 33906.0, 8057.0, 25982.0])
    second = torch.tensor([47833.0, 13569.0, 36197.0, 20142.0])
    digests = [parameters_digest(first), parameters_digest(second)]
    assert digests[0][:16] == digests[1][:16]
    assert digests[0] != digests[1]
    assert all(len(digest) == 64 for digest in digests)
