"""Randomness that protects: where it comes from, how many bits it has, and that its distributions are the right ones."""

from __future__ import annotations

import re
from pathlib import Path

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats

import verfedgnn
from verfedgnn.core import key_stream
from verfedgnn.core.key_stream import KEY_BYTES, KeyStream, NoiseKey, derive_key
from verfedgnn.core.random_streams import NoiseStream, PartyStream, simulated_secret
from verfedgnn.privacy.protections import quantize_ternary
from verfedgnn.privacy.rating_dp import SkellamNoise, skellam_table, total_variation

SOURCE = Path(verfedgnn.__file__).parent
ERROR_RATE = 1e-6
"""Chance that a statistical test fails although the distribution is right; the streams are fixed, so it is decided once."""


# -- where it comes from --------------------------------------------------------------------------------------------------------


def test_every_stream_of_a_party_is_listed_with_its_purpose() -> None:
    """A new stream fails here until somebody has decided whether it protects."""
    assert {stream.name for stream in NoiseStream} == {
        "GRADIENT",
        "PSEUDO_INTERACTIONS",
        "ITEM_ROWS",
        "VALIDATION",
    }
    assert {stream.name for stream in PartyStream} == {
        "ITEM_EMBEDDINGS",
        "SHUFFLE",
        "READ_RATINGS",
    }
    assert not {int(stream) for stream in NoiseStream} & {int(stream) for stream in PartyStream}


def test_nothing_that_protects_uses_another_generator() -> None:
    """In the rooms of parties, NumPy's generators are made in one module only, and torch's nowhere."""
    other = re.compile(r"default_rng\(|torch\.Generator|manual_seed|torch\.rand|np\.random\.(?!Generator\b)")
    found = {
        str(path.relative_to(SOURCE))
        for room in ("core", "privacy", "protocol", "federation", "gnn")
        for path in (SOURCE / room).rglob("*.py")
        if other.search(path.read_text("utf-8"))
    }
    # EASE begins a factorisation of a party's own matrix with random columns. The projection is public; its seed is that of the
    # agreement.
    assert found == {"core/item_item.py", "core/random_streams.py", "privacy/projection.py"}


def test_every_key_has_256_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[bytes] = []
    real = key_stream.ChaCha20
    monkeypatch.setattr(key_stream, "ChaCha20", lambda key, nonce: used.append(key) or real(key, nonce))
    secret = simulated_secret(0, 0)
    for stream in NoiseStream:
        for round in (1, 2):
            NoiseKey(derive_key(secret, int(stream), round)).stream("ternary", 3.0).words((4,))
    assert {len(key) for key in used} == {KEY_BYTES} == {32}
    assert len(set(used)) == 2 * len(NoiseStream)
    with pytest.raises(ValueError, match="32 bytes, not 4"):
        derive_key(b"abcd")


def test_no_part_of_a_secret_decides_a_release() -> None:
    """torch's generator takes 32 bits of a seed, so 2^32 tries find it. Here every bit of the secret counts."""
    x = torch.full((400,), 0.5)
    low = torch.Generator().manual_seed(7)
    high = torch.Generator().manual_seed(7 + (1 << 40))
    assert torch.equal(torch.rand(9, generator=low), torch.rand(9, generator=high)), "what the attack used"
    secret = simulated_secret(1, 0)
    releases = {release(x, secret)}
    for bit in range(8 * KEY_BYTES):
        changed = int.from_bytes(secret) ^ (1 << bit)
        releases.add(release(x, changed.to_bytes(KEY_BYTES)))
    assert len(releases) == 8 * KEY_BYTES + 1


def release(x: torch.Tensor, secret: bytes) -> bytes:
    key = NoiseKey(derive_key(secret, int(NoiseStream.GRADIENT), 1))
    return quantize_ternary(x, 3.0, key.stream("ternary", 3.0)).numpy().tobytes()


def test_a_search_finds_a_secret_of_few_bits_only() -> None:
    """The attack on one release: it succeeds on 10 unknown bits, and its work doubles with every further one."""
    x = torch.full((64,), 0.5)
    hidden = 0x2A7
    seen = release(x, hidden.to_bytes(KEY_BYTES))
    found = [guess for guess in range(1 << 10) if release(x, guess.to_bytes(KEY_BYTES)) == seen]
    assert found == [hidden]


def test_streams_of_other_parameters_are_unrelated() -> None:
    """A seed reused with another variance would show the difference of two values under one noise."""
    key = NoiseKey(simulated_secret(3, 0))
    first, second = (key.stream("skellam", variance).words((8,)) for variance in (400.0, 400.0000001))
    assert not (first == second).any()
    assert (key.stream("skellam", 400.0).words((8,)) == first).all()


def test_ternary_thresholds_are_exact() -> None:
    """A coordinate is chosen for exactly ceil(2^32 |x| / r) of all 2^32 words: checked at the words around the threshold."""

    class Words(KeyStream):
        def __init__(self, value: int) -> None:
            self.value = value

        def words(self, shape: tuple[int, ...], kind: str = "<u8") -> np.ndarray:
            return np.full(shape, self.value - 2**31, kind)

    for value in (0.5, 0.123456, 1e-9, 3.0):
        x = torch.tensor([value])
        count = int(np.ceil(np.float64(np.float32(value)) * (2.0**32 / 3.0)))
        assert int(quantize_ternary(x, 3.0, Words(count - 1))) == 1
        if count < 2**32:
            assert int(quantize_ternary(x, 3.0, Words(count))) == 0
    assert int(quantize_ternary(torch.tensor([0.0]), 3.0, Words(0))) == 0


# -- Skellam noise --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variance", [0.01, 1.0, 25.5, 1000.5])
def test_the_table_is_the_distribution_function(variance: float) -> None:
    """Against Bessel functions of 60 digits: every entry within 2^-128 of the truth, and a rounding of 2^-150."""
    with mpmath.workdps(60):
        table = skellam_table(variance)
        mass = [
            mpmath.exp(-mpmath.mpf(variance)) * mpmath.besseli(k, mpmath.mpf(variance))
            for k in range(min(1 - table.least, 400))
        ]
        beyond = (1 - mass[0]) / 2
        for k in range(1, min(1 - table.least, 400)):
            # P(Z <= -k) = P(Z >= k), and P(Z <= k - 1) = 1 - P(Z >= k)
            lower, upper = table.entry(-table.least - k), (1 << 128) - table.entry(-table.least + k - 1)
            assert lower == upper
            assert abs(lower - beyond * mpmath.mpf(2) ** 128) < 1 + 2**-20
            beyond -= mass[k]
    assert len(table.high) * 2.0**-128 <= total_variation(variance)


@pytest.mark.parametrize("variance", [0.3, 30.0, 512.0**2])
def test_draws_follow_the_distribution(variance: float) -> None:
    """Chi-square over cells of equal chance, 200,000 draws."""
    draws = SkellamNoise(variance, NoiseKey(simulated_secret(5, 0))).draw((200_000,))
    table = skellam_table(variance)
    below = table.high.astype(np.float64) * 2.0**-64  # P(Z <= least + place)
    edges = np.unique(np.searchsorted(below, np.arange(1, 20) / 20))
    cells = np.searchsorted(edges + table.least, draws, side="left")
    chance = np.diff([0.0, *below[edges], 1.0])
    counts = np.bincount(cells, minlength=len(chance))
    statistic = ((counts - len(draws) * chance) ** 2 / (len(draws) * chance)).sum()
    assert stats.chi2.sf(statistic, len(chance) - 1) > ERROR_RATE


def test_undecided_draws_use_64_more_bits() -> None:
    """A word that equals an entry's first 64 bits is decided by the entry's other bits."""
    noise = SkellamNoise(30.0, NoiseKey(simulated_secret(0, 0)))
    table = skellam_table(30.0)
    place = -table.least  # P(Z <= 0)
    entry = table.entry(place)

    class Words(KeyStream):
        def __init__(self, value: int) -> None:
            self.left = [value >> 64, value & (1 << 64) - 1]

        def words(self, shape: tuple[int, ...], kind: str = "<u8") -> np.ndarray:
            return np.array([self.left.pop(0)], np.uint64)

    for value, expected in ((entry - 1, 0), (entry, 1), (entry + 1, 1)):
        noise._stream = Words(value)
        assert noise.draw((1,)).tolist() == [expected]
