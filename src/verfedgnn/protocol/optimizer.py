"""The step that public and private parameters take, written so that every replica computes the same bits.

Only additions, products, divisions and square roots are used, which IEEE 754 rounds the same way everywhere.
"""

from __future__ import annotations

from torch import Tensor

from verfedgnn.config import TrainingConfig

EPS = 1e-10


def step(parameters: Tensor, accumulator: Tensor, gradient: Tensor, config: TrainingConfig) -> None:
    """In place. Adagrad: G += g^2, x -= lr g / (sqrt(G) + eps); sgd: x -= lr g."""
    if config.optimizer == "sgd":
        parameters -= config.lr * gradient
        return
    accumulator += gradient * gradient
    parameters -= (config.lr * gradient) / (accumulator.sqrt() + EPS)
