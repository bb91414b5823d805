"""The step that public and private parameters take, written so that every replica computes the same bits.

Only additions, products, divisions and square roots are used, which IEEE 754 rounds the same way everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

EPS = 1e-10
PIECE, PIECE_ON_GPU = 1 << 18, 1 << 24
"""Values stepped at a time: what is in between stays in a processor's cache, and small."""


def step(parameters: Tensor, accumulator: Tensor, gradient: Tensor, optimizer: str, lr: float) -> None:
    """In place. Adagrad: G += g^2, x -= lr g / (sqrt(G) + eps); sgd: x -= lr g."""
    for x, total, g in pieces(parameters, accumulator, gradient):
        if optimizer == "sgd":
            x -= lr * g
        else:
            total += g * g
            x -= (lr * g) / (total.sqrt() + EPS)


def average(mean: Tensor, value: Tensor, decay: float, round: int) -> None:
    """In place: the running average after `round` rounds; the first rounds are forgotten faster."""
    share = 1 - min(decay, round / (round + 10))
    for m, x in pieces(mean, value):
        m += share * (x - m)


def pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Some rows of each at a time, as views."""
    first = tensors[0]
    most = PIECE_ON_GPU if first.is_cuda else PIECE
    if first.numel() <= most:
        return iter((tensors,))
    rows = max(1, most // first[:1].numel())
    return zip(*(torch.split(tensor, rows) for tensor in tensors), strict=True)
