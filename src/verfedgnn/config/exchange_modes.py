"""The modes of the exchange of neighbourhoods (Sec. 4.4), each with its own settings."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from verfedgnn.config.sections import FRACTION_BITS, Section


class _AnyExchange(Section):
    """The settings of every exchange that sends neighbourhoods."""

    mode: str
    refresh: int = Field(0, ge=0, le=16)
    """Exchange-only round trips before each training round. K of them make the exchange synchronous (exact)."""
    every: int = Field(1, ge=1, le=65535)
    """Rounds between two exchanges. In between, the last sums are reused."""
    backward: bool = False
    """Also train messages on the other parties' losses. Their summed protected user gradients serve as the gradient of
    neighbourhoods, so nothing more is sent."""


class _ProtectedExchange(_AnyExchange):
    """The settings of every exchange that hides single neighbourhoods."""

    bits: Literal[12, 16, 32] = 32
    """Bits of a number on the wire: 32 (20 of them fractional), 16 (10) or 12 (8). Mode exact also has 64 (32), for large degrees and
    sums of attention."""


class ProjectedExchange(_ProtectedExchange):
    """Parties send random projections Phi X of their neighbourhoods (the paper's protection)."""

    mode: Literal["projected"] = "projected"
    """projected: parties send Phi X, a random projection to fewer rows."""
    ratio: float = Field(5.0, gt=0)
    """N/q, the number of users per row of the projection (paper: 5)."""
    block: int = Field(0, ge=0)
    """Block size B of a block-diagonal projection. 0, or at least N: one block, the paper's Phi."""
    reconstruction: Literal["adjoint", "scaled"] = "adjoint"
    """Estimate of X from Y. adjoint: Phi^T Y (eq. 14); scaled: Phi^T Y / (1 + (m+1)/q), the multiple with the least
    expected error."""


class MaskedExchange(_ProtectedExchange):
    """Parties send neighbourhoods under pairwise masks, so that only sums are visible."""

    mode: Literal["masked"] = "masked"
    """masked: parties send X under pairwise masks, so that only sums are visible."""


class NoisedExchange(_ProtectedExchange):
    """Parties send masked neighbourhoods with noise; the sums are differentially private."""

    mode: Literal["noised"] = "noised"
    """noised: like masked, with noise on the sums."""
    noise: float = Field(gt=0)
    """Standard deviation of the noise on the sum of the other parties' neighbourhoods."""
    row_clip: float = Field(gt=0)
    """Largest l2 norm of a user's row. Longer rows are shortened before noise is added."""

    @model_validator(mode="after")
    def _check_range(self) -> NoisedExchange:
        if self.noise * 6 * (1 << FRACTION_BITS[self.bits]) > 2 ** (self.bits - 1):
            raise ValueError(
                f"exchange.noise = {self.noise:g} does not fit into {self.bits} bits; "
                "use less noise or exchange.bits = 32"
            )
        return self


class ExactExchange(_AnyExchange):
    """Parties send neighbourhoods unprotected."""

    mode: Literal["exact"] = "exact"
    """exact: parties send X itself (unprotected)."""
    bits: Literal[12, 16, 32, 64] = 32
    """Bits of a number on the wire: 32 (20 of them fractional), 16 (10) or 12 (8). Mode exact also has 64 (32), for large degrees and
    sums of attention."""


class NoExchange(Section):
    """No neighbourhood leaves a party."""

    mode: Literal["off"] = "off"
    """off: no neighbourhood leaves a party."""
    refresh: ClassVar[int] = 0
    every: ClassVar[int] = 1
    backward: ClassVar[bool] = False
    bits: ClassVar[Literal[32]] = 32


ExchangeConfig = Annotated[
    ProjectedExchange | MaskedExchange | NoisedExchange | ExactExchange | NoExchange,
    Field(discriminator="mode"),
]
"""The exchange of neighbourhoods (Sec. 4.4), in one of its modes."""
