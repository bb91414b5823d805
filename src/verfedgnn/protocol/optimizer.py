"""The step that public and private parameters take, written so that every replica computes the same bits.

Only additions, products, divisions and square roots are used, which IEEE 754 rounds the same way everywhere.
"""

from __future__ import annotations

from torch import Tensor

EPS = 1e-10


def step(parameters: Tensor, accumulator: Tensor, gradient: Tensor, optimizer: str, lr: float) -> None:
    """In place. Adagrad: G += g^2, x -= lr g / (sqrt(G) + eps); sgd: x -= lr g."""
    if optimizer == "sgd":
        parameters -= lr * gradient
        return
    accumulator += gradient * gradient
    parameters -= (lr * gradient) / (accumulator.sqrt() + EPS)


def average(mean: Tensor, value: Tensor, decay: float, round: int) -> None:
    """In place: the running average after `round` rounds; the first rounds are forgotten faster."""
    mean += (1 - min(decay, round / (round + 10))) * (value - mean)
