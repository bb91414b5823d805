"""The mechanisms that protect the gradients of public parameters (Sec. 4.5), each with its own settings."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from verfedgnn.config.sections import Section


class _AnyMechanism(Section):
    """The setting that every mechanism has."""

    mechanism: str
    delta: float = Field(1e-6, gt=0, lt=1)
    """Delta at which a composed epsilon is reported."""


class _RescaledGradients(_AnyMechanism):
    """The setting of every mechanism that works on rescaled gradients."""

    rescale: float = Field(1.0, gt=0)
    """Public factor that multiplies a gradient before it is clipped and divides it afterwards. It costs no privacy."""


class TernaryGradients(_RescaledGradients):
    """Gradients quantized to -1, 0 and 1 (Def. 4.2)."""

    mechanism: Literal["ternary"] = "ternary"
    """ternary: quantize each coordinate to -1, 0 or 1 at random (Def. 4.2)."""
    r: float = Field(3.0, gt=0)
    """Parameter r of the ternary scheme. One release changes by at most 1/r in total variation for gradients 1 apart in l1."""
    clip: float = Field(0.5, gt=0)
    """Largest absolute value of a coordinate before it is protected (paper: 0.5). Mechanism none also takes unset: no limit."""

    @model_validator(mode="after")
    def _check_probabilities(self) -> TernaryGradients:
        if self.clip > self.r:
            raise ValueError(
                f"gradients.clip = {self.clip} exceeds gradients.r = {self.r}, so |x|/r is not a probability; raise r"
            )
        return self


class LaplaceGradients(_RescaledGradients):
    """Gradients with Laplace noise (Table 6)."""

    mechanism: Literal["laplace"] = "laplace"
    """laplace: add Laplace noise to each coordinate (Table 6)."""
    epsilon: float = Field(1.0, gt=0)
    """Epsilon of the Laplace mechanism, per release."""
    clip: float = Field(0.5, gt=0)
    """Largest absolute value of a coordinate before it is protected (paper: 0.5). Mechanism none also takes unset: no limit."""


class SkellamGradients(_AnyMechanism):
    """Masked sums of gradients with Skellam noise: differential privacy of single ratings (docs/privacy.md)."""

    mechanism: Literal["skellam"] = "skellam"
    """skellam: add Skellam noise under masked sums, for differential privacy of single ratings over the whole training
    (docs/privacy.md)."""
    noise_multiplier: float = Field(gt=0)
    """Standard deviation of the noise on a sum, as a multiple of the most that one rating can change it. `train --epsilon`
    chooses it."""
    protects: Literal["rating", "user"] = "rating"
    """Unit of the guarantee. rating: one rating of one user at one party; user: all ratings of one user at one party, by limiting
    what each user contributes."""
    user_ratings: int = Field(16, ge=1)
    """Training ratings of a user that a party uses with gradients.protects = user. It limits a user's contribution to the root of
    this number times that of one rating."""
    clip: ClassVar[None] = None
    rescale: ClassVar[float] = 1.0


class OpenGradients(_RescaledGradients):
    """Unprotected gradients."""

    mechanism: Literal["none"] = "none"
    """none: send gradients unprotected."""
    clip: float | None = Field(0.5, gt=0)
    """Largest absolute value of a coordinate before it is protected (paper: 0.5). Mechanism none also takes unset: no limit."""


class RoundedGradients(_AnyMechanism):
    """Gradients of solved models, rounded at random to 8 bits."""

    mechanism: Literal["rounded"] = "rounded"
    """rounded: round each coordinate at random to 8 bits, in a unit from the last public sum. Masks hide it; it has no guarantee of
    its own."""
    noise: float | None = Field(None, ge=0, le=10)
    """Standard deviation of the noise that a party adds to a column, as a multiple of the column's root mean square. unset: 0.25 for
    two parties, who see each other's gradients, and none for more."""
    clip: ClassVar[None] = None
    rescale: ClassVar[float] = 1.0


GradientConfig = Annotated[
    TernaryGradients | LaplaceGradients | SkellamGradients | OpenGradients | RoundedGradients,
    Field(discriminator="mechanism"),
]
"""The protection of the gradients of public parameters (Sec. 4.5), by one of its mechanisms."""
