"""Mechanisms that a party applies to the gradients of public parameters before sending them (Sec. 4.5)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from verfedgnn.config.sections import GradientConfig
from verfedgnn.core.key_stream import KeyStream, NoiseKey

PIECE = 1 << 16
"""Number of coordinates that are quantized at a time, few enough for the processor's cache."""


def clip(gradient: Tensor, bound: float | None) -> Tensor:
    """Clamp each coordinate to [-bound, bound]."""
    return gradient if bound is None else gradient.clamp(-bound, bound)


def quantize_ternary(x: Tensor, r: float, stream: KeyStream) -> Tensor:
    r"""Quantize to the signs of the ternary scheme, int8 in {-1, 0, 1} (Def. 4.2).

    .. math::
        Q(x)_i = r \, \mathrm{sign}(x_i) \, b_i, \qquad
        P(b_i = 1) = 2^{-32} \lceil 2^{32} |x_i| / r \rceil

    The result is Q(x) / r. A coordinate is chosen if 32 uniform bits, as an integer, are below 2^32 |x_i| / r. Its probability is
    |x_i| / r rounded up to a multiple of 2^-32. The total variation between the releases of x and y is at most |x - y|_1 / r and
    2^-32 for each coordinate that differs.
    """
    flat = x.reshape(-1)
    signs = torch.empty(flat.shape, dtype=torch.int8, device=x.device)
    for values, found in zip(torch.split(flat, PIECE), torch.split(signs, PIECE), strict=True):
        bits = torch.from_numpy(stream.words((len(values),), "<i4")).to(x.device)
        # Signed bits are uniform from -2^31. Doubles hold all these integers exactly.
        threshold = values.abs().double().mul_(2.0**32 / r).sub_(2.0**31)
        found.copy_(values.sign().mul_(bits.double() < threshold))
    return signs.view(x.shape)


def add_laplace(x: Tensor, epsilon: float, stream: KeyStream) -> Tensor:
    """Add Laplace noise of scale 1/epsilon: epsilon-DP per release for gradients that differ by at most 1 in
    l1.

    The noise is computed in floating point, so the guarantee is that of the ideal mechanism (Mironov 2012).
    """
    uniform = stream.uniform(tuple(x.shape)) - 0.5
    noise = np.sign(uniform) * np.log1p(-2 * np.abs(uniform)) / -epsilon
    return x + torch.from_numpy(noise).to(x.device, x.dtype)


def protect(gradient: Tensor, config: GradientConfig, key: NoiseKey) -> Tensor:
    """Rescale and clip a flat public gradient, then quantize it (int8) or add noise (float32).

    The result is what the party sends.
    """
    scaled = clip(gradient * config.rescale, config.clip)
    if config.mechanism == "ternary":
        return quantize_ternary(scaled, config.r, key.stream("ternary", config.r))
    if config.mechanism == "laplace":
        return add_laplace(scaled, config.epsilon, key.stream("laplace", config.epsilon))
    return scaled


def invert_rescale(config: GradientConfig, scale: float) -> float:
    """Return the factor that turns a sum of protected gradients into an estimate of the summed gradient.

    It includes the participation factor `scale`.
    """
    unit = config.r if config.mechanism == "ternary" else 1.0
    return unit * scale / config.rescale
