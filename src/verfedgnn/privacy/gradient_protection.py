"""Mechanisms that a party applies to the gradients of public parameters before sending them (Sec. 4.5)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.config.gradient_mechanisms import GradientConfig


def clip(gradient: Tensor, bound: float | None) -> Tensor:
    """Clamp each coordinate to [-bound, bound]."""
    return gradient if bound is None else gradient.clamp(-bound, bound)


def quantize_ternary(x: Tensor, r: float, generator: torch.Generator) -> Tensor:
    r"""Quantize to the signs of the ternary scheme, int8 in {-1, 0, 1} (Def. 4.2).

    .. math::
        Q(x)_i = r \, \mathrm{sign}(x_i) \, b_i, \qquad P(b_i = 1) = |x_i| / r

    The result is Q(x) / r. It is unbiased, and the total variation between the releases of x and y is at most
    |x - y|_1 / r.
    """
    chosen = torch.rand(x.shape, generator=generator, device=x.device).mul_(r) < x.abs()
    return x.sign().to(torch.int8).mul_(chosen)


def add_laplace(x: Tensor, epsilon: float, generator: torch.Generator) -> Tensor:
    """Add Laplace noise of scale 1/epsilon: epsilon-DP per release for gradients that differ by at most 1 in
    l1.
    """
    uniform = torch.rand(x.shape, generator=generator, device=x.device, dtype=torch.float64) - 0.5
    noise = -uniform.sign() * torch.log1p(-2 * uniform.abs().clamp(max=0.5 - 1e-16)) / epsilon
    return x + noise.to(x.dtype)


@dataclass(frozen=True)
class Rescale:
    """Public factors on a gradient before clipping, for user parameters and for shared weights.

    The recipient divides by them again (`invert_rescale`).
    """

    users: float
    weights: float

    @classmethod
    def of(cls, config: Config, users: float, parties: int, ratings: float) -> Rescale:
        """Return the configured factors.

        With `rescale_by_ratings` they are divided by the root of the number of ratings that a coordinate sums
        over.
        """
        gradients = config.gradients
        batch = config.training.batch
        if not gradients.rescale_by_ratings:
            return cls(gradients.rescale_users, gradients.rescale_weights)
        users = users / config.training.user_blocks  # of one round
        ratings = ratings / config.training.user_blocks
        summed = max(1, min(batch, ratings) if batch else ratings) / parties
        return cls(
            gradients.rescale_users / math.sqrt(summed / users), gradients.rescale_weights / math.sqrt(summed)
        )


def protect(
    gradient: Tensor, config: GradientConfig, rescale: Rescale, user_size: int, generator: torch.Generator
) -> Tensor:
    """Rescale and clip a flat public gradient, then quantize it (int8) or add noise (float32).

    The result is what the party sends. The first `user_size` coordinates belong to users.
    """
    scaled = gradient.clone()
    scaled[:user_size] *= rescale.users
    scaled[user_size:] *= rescale.weights
    scaled = clip(scaled, config.clip)
    if config.mechanism == "ternary":
        return quantize_ternary(scaled, config.r, generator)
    if config.mechanism == "laplace":
        return add_laplace(scaled, config.epsilon, generator)
    return scaled


def invert_rescale(config: GradientConfig, rescale: Rescale, scale: float) -> Rescale:
    """Return the factors that turn a sum of protected gradients into an estimate of the summed gradient.

    They include the participation factor `scale`.
    """
    unit = config.r if config.mechanism == "ternary" else 1.0
    return Rescale(unit * scale / rescale.users, unit * scale / rescale.weights)
