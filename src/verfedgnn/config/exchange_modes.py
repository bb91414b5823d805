"""The modes of the exchange of neighbourhoods (Sec. 4.4), each with its own settings."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from verfedgnn.config.sections import Section


class _AnyExchange(Section):
    """The settings of every exchange that sends neighbourhoods."""

    mode: str
    refresh: int = Field(0, ge=0, le=16)
    """Exchange-only round trips before each training round. K of them make the exchange synchronous (exact)."""


class ProjectedExchange(_AnyExchange):
    """Parties send random projections Phi X of their neighbourhoods (the paper's protection)."""

    mode: Literal["projected"] = "projected"
    """projected: parties send Phi X, a random projection to fewer rows."""
    ratio: float = Field(5.0, gt=0)
    """N/q, the number of users per row of the projection (paper: 5)."""
    block: int = Field(0, ge=0)
    """Block size B of a block-diagonal projection. 0, or at least N: one block, the paper's Phi."""
    bits: ClassVar[Literal[32]] = 32


class ExactExchange(_AnyExchange):
    """Parties send neighbourhoods unprotected."""

    mode: Literal["exact"] = "exact"
    """exact: parties send X itself (unprotected)."""
    bits: Literal[32, 64] = 32
    """Bits of a number on the wire: 32 (20 of them fractional), or 64 (32) for large degrees and sums of attention."""


class NoExchange(Section):
    """No neighbourhood leaves a party."""

    mode: Literal["off"] = "off"
    """off: no neighbourhood leaves a party."""
    refresh: ClassVar[int] = 0
    bits: ClassVar[Literal[32]] = 32


ExchangeConfig = Annotated[
    ProjectedExchange | ExactExchange | NoExchange,
    Field(discriminator="mode"),
]
"""The exchange of neighbourhoods (Sec. 4.4), in one of its modes."""
