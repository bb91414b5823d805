"""The optimiser's step for public and private parameters, identical to the bit on every replica.

It uses only additions, products, divisions and square roots, which IEEE 754 rounds the same way everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

EPS = 1e-10
PIECE = 1 << 18
"""Values stepped at a time on the CPU, so that intermediate results stay in its cache."""
PIECE_ON_GPU = 1 << 24
"""Values stepped at a time on a GPU, so that intermediate results stay small."""


def step(parameters: Tensor, accumulator: Tensor, gradient: Tensor, optimizer: str, lr: float) -> None:
    """Step in place. Adagrad: G += g^2, x -= lr g / (sqrt(G) + eps). SGD: x -= lr g."""
    for x, total, g in pieces(parameters, accumulator, gradient):
        if optimizer == "sgd":
            x -= lr * g
        else:
            total += g * g
            x -= (lr * g) / (total.sqrt() + EPS)


def pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield matching groups of rows of all tensors, as views."""
    first = tensors[0]
    most = PIECE_ON_GPU if first.is_cuda else PIECE
    if first.numel() <= most:
        return iter((tensors,))
    rows = max(1, most // first[:1].numel())
    return zip(*(torch.split(tensor, rows) for tensor in tensors), strict=True)
