"""Masked sums: exact cancellation, nothing to read in a single message, the same model to the bit."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
import pytest
import torch
from Crypto.Protocol.SecretSharing import Shamir
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import verfedgnn as vf
from helpers import config, federation
from verfedgnn.privacy.masking import (
    GRADIENT,
    NEIGHBOURHOOD,
    SEED,
    SELF,
    MaskKey,
    add_masks,
    derive_stream,
    lost_streams,
    recover_seeds,
    remove_masks,
    share_threshold,
    split_seeds,
)
from verfedgnn.protocol.messages import RoundStart
from verfedgnn.protocol.party_state import Policy
from verfedgnn.protocol.replica import parameters_digest


class Circle:
    """Parties of one round that have exchanged their mask keys and shares."""

    def __init__(self, active: list[int]) -> None:
        self.active = active
        self.seeds = {index: (os.urandom(SEED), os.urandom(SEED)) for index in active}
        """Seeds of each party's self-mask and of its mask key."""
        self.keys = {index: MaskKey(seed).public for index, (_, seed) in self.seeds.items()}
        self.shares = {index: split_seeds(seeds, len(active)) for index, seeds in self.seeds.items()}

    def mask(
        self, index: int, values: NDArray[Any], context: bytes = b"", use: int = GRADIENT
    ) -> NDArray[Any]:
        own, seed = self.seeds[index]
        streams = [derive_stream(own, SELF, context), *MaskKey(seed).streams(index, self.keys, context)]
        return add_masks(values, streams, use, 8 * values.itemsize).view(values.dtype)

    def recover(self, owner: int, kind: int, holders: list[int]) -> bytes:
        """Recover the self-mask seed (kind 0) or the key seed (kind 1) of a party from the shares of `holders`."""
        place = slice(kind * SEED, (kind + 1) * SEED)
        positions = [self.active.index(holder) for holder in holders]
        (seed,) = recover_seeds({p + 1: [self.shares[owner][p][place]] for p in positions})
        return seed


@settings(max_examples=40, deadline=None)
@given(
    data=st.data(), count=st.integers(2, 7), kind=st.sampled_from(["i1", "i2", "i4"]), size=st.integers(0, 30)
)
def test_the_sum_of_the_survivors_is_exact(data: st.DataObject, count: int, kind: str, size: int) -> None:
    """Any survivors, as many as the threshold or more, unmask their sum with the shares that they may reveal."""
    active = sorted(data.draw(st.sets(st.integers(0, 9), min_size=count, max_size=count)))
    needed = share_threshold(count)
    survivors = sorted(data.draw(st.sets(st.sampled_from(active), min_size=needed)))
    holders = data.draw(st.permutations(survivors))[:needed]
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    limit = np.iinfo(kind).max // count
    values = {i: rng.integers(-limit, limit + 1, size).astype(kind) for i in active}
    circle = Circle(active)
    total = np.zeros(size, kind)
    for i in survivors:
        total += circle.mask(i, values[i], b"context")
    keys = {i: circle.keys[i] for i in survivors}
    for i in active:
        if i in survivors:
            streams = [derive_stream(circle.recover(i, 0, holders), SELF, b"context")]
        else:
            streams = lost_streams(circle.recover(i, 1, holders), i, keys, b"context")
        total = remove_masks(total, streams, GRADIENT, 8 * total.itemsize)
    np.testing.assert_array_equal(total, sum(values[i] for i in survivors))


def test_a_message_alone_is_uniform() -> None:
    """Chi-square over byte values of 200,000 masked zeros: 255 degrees of freedom, a chance of 1e-6 to fail."""
    masked = Circle([0, 1, 2]).mask(0, np.zeros(200_000, np.int8)).view(np.uint8)
    counts = np.bincount(masked, minlength=256)
    chi_square = float(((counts - 200_000 / 256) ** 2 / (200_000 / 256)).sum())
    assert chi_square < 255 + 5.5 * math.sqrt(2 * 255)


def test_no_stream_is_used_twice() -> None:
    zeros = np.zeros(64, np.int32)
    circles = [Circle([0, 1]) for _ in range(2)]
    uses = [(c, context, u) for c in circles for context in (b"a", b"b") for u in (GRADIENT, NEIGHBOURHOOD)]
    assert len({c.mask(0, zeros, context, u).tobytes() for c, context, u in uses}) == len(uses)


def test_fewer_shares_than_the_threshold_recover_nothing() -> None:
    circle = Circle([0, 1, 2, 3])
    assert circle.recover(0, 0, [1, 2, 3]) == circle.seeds[0][0]
    assert circle.recover(0, 1, [0, 1, 3]) == circle.seeds[0][1]
    assert circle.recover(0, 0, [1, 2]) != circle.seeds[0][0]


@pytest.mark.parametrize(("parties", "threshold"), [(2, 2), (3, 3), (4, 3), (7, 5), (10, 7), (100, 67)])
def test_two_lists_need_more_than_a_third_of_the_parties_to_collude(parties: int, threshold: int) -> None:
    assert share_threshold(parties) == threshold
    assert 2 * threshold - parties > parties / 3


@settings(max_examples=30, deadline=None)
@given(data=st.data(), count=st.integers(2, 9))
def test_seeds_are_recovered_as_by_the_library(data: st.DataObject, count: int) -> None:
    needed = share_threshold(count)
    secrets = [data.draw(st.binary(min_size=16, max_size=16)) for _ in range(3)]
    split = [Shamir.split(needed, count, secret) for secret in secrets]
    holders = sorted(data.draw(st.permutations(range(count)))[:needed])
    shares = {split[0][h][0]: [each[h][1] for each in split] for h in holders}
    assert recover_seeds(shares) == secrets
    assert recover_seeds(shares) == [Shamir.combine([each[h] for h in holders]) for each in split]


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
        sums = [each.coordinator.neighbourhood_sum for each in (plain, masked)]
        np.testing.assert_array_equal(sums[0].total, sums[1].total)
        assert torch.equal(plain.coordinator.replica.parameters, masked.coordinator.replica.parameters)


@pytest.mark.parametrize("values", [{}, {"participation": 0.67}, {"model": "ggnn"}])
def test_the_model_is_the_same_to_the_bit(small_parties: list[vf.PartyData], values: dict[str, Any]) -> None:
    plain, masked = (
        vf.train(small_parties, vf.Config.preset("paper", batch=400, epochs=3, masking=masking, **values))
        for masking in (False, True)
    )
    assert torch.equal(plain.public, masked.public)
    assert plain.metrics["test"] == masked.metrics["test"]
    assert masked.metrics["bytes"]["up"] > plain.metrics["bytes"]["up"]
    assert "sums" in masked.metrics["privacy"]["masking"]


def test_a_forged_part_is_noticed(small_parties: list[vf.PartyData]) -> None:
    runtime = federation(small_parties, config(masking=True), policy=Policy())
    party = runtime.parties[small_parties[0].name]
    honest = party.masks.hide

    def lie(values: NDArray[Any], message: RoundStart, context: bytes, use: int, bits: int) -> NDArray[Any]:
        masked = honest(values, message, context, use, bits)
        return np.full_like(masked, 5) if use == GRADIENT else masked

    party.masks.hide = lie  # type: ignore[method-assign]
    with pytest.raises(vf.ProtocolError, match="do not add up"):
        runtime.round()
    closed = runtime.coordinator.abandon()
    assert closed.abandoned
    party.masks.hide = honest  # type: ignore[method-assign]
    before = runtime.coordinator.replica.parameters.clone()
    assert runtime.round().round == 2
    assert not torch.equal(before, runtime.coordinator.replica.parameters)
    assert {p.replica.digest() for p in runtime.parties.values()} == {party.replica.digest()}


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
    circle = Circle([0, 1])
    zeros = np.zeros(64, np.int8)
    left = circle.mask(0, zeros, digests[0].encode())
    right = circle.mask(1, zeros, digests[1].encode())
    masks = [derive_stream(circle.seeds[i][0], SELF, digests[i].encode()) for i in (0, 1)]
    assert remove_masks(left + right, masks, GRADIENT, 8).any(), "masks that cancel would show the sum"
