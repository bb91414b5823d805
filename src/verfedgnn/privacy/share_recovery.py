r"""Recovery of many Shamir secrets from the same parties' shares, for the coordinator.

Secrets are split by `Crypto.Protocol.SecretSharing.Shamir` over GF(2^128). A secret is the value at 0 of the polynomial through its
shares:

.. math::
    f(0) = \sum_j \lambda_j f(x_j), \qquad \lambda_j = \prod_{m \neq j} \frac{x_m}{x_j + x_m}

`Shamir.combine` computes the weights again for every secret, which takes eleven seconds for the seeds of 100 parties. Here they are
computed once. The coordinator may know these secrets, so the arithmetic need not run in constant time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, reduce

_POLYNOMIAL = 1 << 128 | 0b10000111
"""The polynomial that defines the field in `Shamir`: x^128 + x^7 + x^2 + x + 1."""


def recover_seeds(shares: Mapping[int, Sequence[bytes]]) -> list[bytes]:
    """Return the secrets behind `shares`: for each party's number (from 1), its shares of all secrets in the same order."""
    numbers = tuple(sorted(shares))
    weights = _weights(numbers)
    seeds = []
    for column in zip(*(shares[number] for number in numbers), strict=True):
        parts = (
            _multiply(weight, int.from_bytes(share)) for weight, share in zip(weights, column, strict=True)
        )
        seeds.append(reduce(int.__xor__, parts).to_bytes(16))
    return seeds


@lru_cache(maxsize=16)
def _weights(numbers: tuple[int, ...]) -> list[int]:
    """Return the weights of the shares with these numbers."""
    weights = []
    for own in numbers:
        above = below = 1
        for other in numbers:
            if other != own:
                above = _multiply(above, other)
                below = _multiply(below, own ^ other)
        weights.append(_multiply(above, _invert(below)))
    return weights


def _multiply(a: int, b: int) -> int:
    """Return a product in GF(2^128); `b` may be small."""
    product = 0
    while b:
        if b & 1:
            product ^= a
        a <<= 1
        if a >> 128:
            a ^= _POLYNOMIAL
        b >>= 1
    return product


def _invert(a: int) -> int:
    """Return the inverse in GF(2^128): a to the power 2^128 - 2."""
    result = 1
    for _ in range(127):
        a = _multiply(a, a)
        result = _multiply(result, a)
    return result
