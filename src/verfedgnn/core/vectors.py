"""Operations on rows of a matrix."""

from __future__ import annotations

from torch import Tensor


def clip_rows(x: Tensor, bound: float) -> Tensor:
    """Shorten every row of `x` (..., C) to an l2 norm of at most `bound`."""
    clipped: Tensor = x * (bound / x.norm(dim=-1, keepdim=True).clamp(min=bound))
    return clipped
