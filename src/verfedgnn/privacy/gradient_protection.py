"""Mechanisms that a party applies to the gradients of public parameters before they leave it (Sec. 4.5)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.config.gradient_mechanisms import GradientConfig


def clip(gradient: Tensor, bound: float | None) -> Tensor:
    """Each coordinate to [-bound, bound]."""
    return gradient if bound is None else gradient.clamp(-bound, bound)


def quantize_ternary(x: Tensor, r: float, generator: torch.Generator) -> Tensor:
    r"""Signs of the ternary scheme, int8 in {-1, 0, 1} (Def. 4.2).

    .. math::
        Q(x)_i = r \, \mathrm{sign}(x_i) \, b_i, \qquad P(b_i = 1) = |x_i| / r

    What is returned is Q(x) / r. It is unbiased, and one release moves by at most |x - y|_1 / r in total variation.
    """
    chosen = torch.rand(x.shape, generator=generator, device=x.device).mul_(r) < x.abs()
    return x.sign().to(torch.int8).mul_(chosen)


def add_laplace(x: Tensor, epsilon: float, generator: torch.Generator) -> Tensor:
    """x plus Laplace noise of scale 1/epsilon: epsilon-DP per release for gradients that differ by at most 1 in l1."""
    uniform = torch.rand(x.shape, generator=generator, device=x.device, dtype=torch.float64) - 0.5
    noise = -uniform.sign() * torch.log1p(-2 * uniform.abs().clamp(max=0.5 - 1e-16)) / epsilon
    return x + noise.to(x.dtype)


@dataclass(frozen=True)
class Rescale:
    """The public factors s on a gradient before the clip, for user parameters and shared weights; `invert_rescale` divides them out."""

    users: float
    weights: float

    @classmethod
    def of(cls, config: Config, users: float, parties: int, ratings: float) -> Rescale:
        """As configured: plain factors, or over the root of how many ratings a coordinate of a party's gradient sums over."""
        gradients = config.gradients
        batch = config.training.batch
        if not gradients.rescale_by_ratings:
            return cls(gradients.rescale_users, gradients.rescale_weights)
        users, ratings = (
            users / config.training.user_blocks,
            ratings / config.training.user_blocks,
        )  # of a round
        summed = max(1, min(batch, ratings) if batch else ratings) / parties
        return cls(
            gradients.rescale_users / math.sqrt(summed / users), gradients.rescale_weights / math.sqrt(summed)
        )


def protect(
    gradient: Tensor, config: GradientConfig, rescale: Rescale, user_size: int, generator: torch.Generator
) -> Tensor:
    """A flat public gradient as it may leave the party: rescaled, clipped, then quantized (int8) or noised (float32).

    The first `user_size` coordinates belong to users.
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
    """What 1 in a sum of protected gradients says about the summed gradient, times the participation factor `scale`."""
    unit = config.r if config.mechanism == "ternary" else 1.0
    return Rescale(unit * scale / rescale.users, unit * scale / rescale.weights)
