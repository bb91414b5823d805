"""The sections of the configuration: a typed field for each setting, and its explanation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from verfedgnn import plugins


class Section(BaseModel):
    """An immutable part of the configuration that rejects undeclared fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _read_unset(cls, values: Any) -> Any:
        """Replace the text "unset" by None, because TOML has no null."""
        if not isinstance(values, dict):
            return values
        return {name: None if value == "unset" else value for name, value in values.items()}


# -- The forms of the model: propagation over the graph, plain factors, factors that are solved at home, or means -------------


class _AnyForm(Section):
    """The settings that every form of the model has."""

    form: str
    gnn: str = "gcn"
    """GNN that aggregates neighbours and updates embeddings: gcn, gat, ggnn, or the name of a plug-in (docs/python.md)."""
    code: str | None = Field(None, pattern=plugins.PATTERN)
    """File or package and SHA-256 of a plug-in's code. Training and `federation init` fill it in."""
    dim: int = Field(6, ge=1, le=4096)
    """D, the size of an embedding (paper: 6). 0, for form solved: by the number of ratings a user (docs/model.md)."""
    solved: ClassVar[bool] = False
    """Whether items are solved at home, and users take one preconditioned step a round (docs/model.md)."""

    @model_validator(mode="after")
    def _check_plugin(self) -> Self:
        """Load a plug-in; report one that is not installed together with the code that the configuration names."""
        if self.gnn not in plugins.GNNS:
            plugins.load_gnn(self.gnn, self.code)
        return self


class PropagationModel(_AnyForm):
    """K layers of propagation over the user-item graph (eq. 1-3)."""

    form: Literal["propagation"] = "propagation"
    """propagation: K layers over the embeddings (eq. 1-3)."""
    layers: int = Field(2, ge=1, le=16)
    """K, the number of propagation layers (paper: 2)."""
    threshold: float | Literal["all"] | None = None
    """Lowest rating that makes an item a neighbour of a user. unset: three quarters up the rating scale (4 of 5, 8 of 10);
    all: every rated item is a neighbour."""
    estimators: bool = True
    """Estimate a user's degree from the party's own items (Sec. 4.3). If false, exact degrees are exchanged (unprotected)."""
    biases: ClassVar[bool] = False
    bound: ClassVar[None] = None
    raters: ClassVar[int] = 0


class FactorModel(_AnyForm):
    """The embeddings alone, without a graph."""

    form: Literal["factors"] = "factors"
    """factors: no graph, the embeddings alone."""
    biases: bool = False
    """Add a private bias per item and a public bias per user to the product of embeddings (docs/model.md). A solved model without
    them orders lists instead of predicting ratings."""
    bound: float | None = Field(None, gt=0)
    """Largest l2 norm of a user's or item's embedding. Longer embeddings are shortened after each step."""
    raters: ClassVar[int] = 0


class SolvedModel(_AnyForm):
    """Embeddings whose items are solved at home, and whose users take one preconditioned step a round (docs/model.md)."""

    form: Literal["solved"] = "solved"
    """solved: items are solved at home, and users take one preconditioned step a round (docs/model.md)."""
    biases: bool = True
    """Add a private bias per item and a public bias per user to the product of embeddings (docs/model.md). A solved model without
    them orders lists instead of predicting ratings."""
    dim: int = Field(0, ge=0, le=4096)
    """D, the size of an embedding (paper: 6). 0, for form solved: by the number of ratings a user (docs/model.md)."""
    raters: int = Field(-1, ge=-1, le=4096)
    """H, the size of a second model that computes an item's vector from the ratings of its raters (docs/model.md). 0: none; -1: by
    the number of ratings a user."""
    solved: ClassVar[bool] = True
    bound: ClassVar[None] = None


class MeansModel(_AnyForm):
    """Means of users, two numbers a user, which are shared in one round."""

    form: Literal["means"] = "means"
    """means: means of users and nothing else, two numbers a user, in one round."""
    solved: ClassVar[bool] = True
    biases: ClassVar[bool] = True
    bound: ClassVar[None] = None
    raters: ClassVar[int] = 0


@dataclass(frozen=True)
class Sizes:
    """Sizes of a solved model."""

    dim: int
    """D of the model of ratings."""
    raters: int
    """H of its second model."""
    lists: int
    """D of the model of lists."""


SIZES = ((10.0, Sizes(8, 0, 16)), (40.0, Sizes(16, 0, 64)), (math.inf, Sizes(16, 64, 64)))
"""Sizes by ratings a user: few ratings determine few numbers, and the second model adds nothing to sparse data."""


def choose_sizes(users: int, ratings: int) -> Sizes:
    """Return the sizes of a solved model for so many users and ratings of all parties."""
    return next(sizes for most, sizes in SIZES if ratings < most * max(1, users))


ModelConfig = Annotated[
    PropagationModel | FactorModel | SolvedModel | MeansModel, Field(discriminator="form")
]
"""The graph neural network (Sec. 3.2), in one of its forms."""


# -- Rounds and data ---------------------------------------------------------------------------------------


class TrainingConfig(Section):
    """The rounds of a training, its optimiser, its regularisation and when it stops."""

    lr: float = Field(0.05, gt=0)
    """Learning rate of Adagrad (paper: 0.05)."""
    error_clip: float | None = Field(None, gt=0)
    """Error from which on the loss grows linearly (Huber), which bounds the effect of one rating. unset: squared error only."""
    l2: float = Field(1.0, ge=0)
    """Weight of the regulariser. Without biases: that of eq. 5, (1/N) sum |e_u|^2 + (1/M) sum |e_v|^2. With them: of |e_u|^2 and |e_v|^2,
    counted once per user or item. A solved model estimates its own."""
    l2_bias: float = Field(0.0, ge=0)
    """Weight of b_u^2 and b_v^2, counted once per user or item."""
    batch: int = Field(5000, ge=0)
    """Training ratings per round, over all parties. 0: all ratings."""
    epochs: int = Field(50, ge=1)
    """Passes over the training ratings. The number of rounds is epochs x ratings / batch."""
    participation: float = Field(1.0, gt=0, le=1)
    """Share of the parties that take part in a round (Sec. 4.6)."""
    gate: bool = False
    """After training, let every party mix the federated model with what it has alone, by its own validation part."""
    evaluate_every: int = Field(0, ge=0)
    """Rounds between two validations. 0: once per epoch."""
    patience: int = Field(0, ge=0)
    """Number of validations without improvement after which training stops. 0: train to the end. The best round is kept in both cases."""


class SplitConfig(Section):
    """The split of ratings into training, validation and test parts."""

    kind: Literal["auto", "date", "random", "rating", "all"] = "auto"
    """date: by the two `dates`; random: by `fractions`. Both withhold some users at each party, on whom newcomers are judged. auto: by
    date if all parties have times and enough customers after the second date, else random. rating: by `fractions`, and nobody is
    withheld. all: every rating trains."""
    fractions: tuple[float, float, float] = (0.8, 0.1, 0.1)
    """Shares of training, validation and test (paper: 60/20/20)."""
    dates: tuple[date, date] | None = None
    """First days of validation and of test, such as ["2025-01-01", "2025-03-01"]. unset: where `kind` is auto, chosen by `fractions`."""

    @model_validator(mode="after")
    def _check_sum(self) -> SplitConfig:
        if abs(sum(self.fractions) - 1) > 1e-6 or min(self.fractions) < 0:
            raise ValueError(f"split.fractions = {list(self.fractions)} must be shares that add up to 1")
        if self.kind == "date" and self.dates is None:
            raise ValueError("split.kind = date needs split.dates, the first days of validation and of test")
        if self.dates is not None and self.dates[0] >= self.dates[1]:
            raise ValueError("split.dates must be in order: the first day of validation, then that of test")
        return self


# -- The mechanisms that protect the gradients of public parameters (Sec. 4.5), each with its own settings


class _AnyMechanism(Section):
    """What every mechanism has."""

    mechanism: str
    integers: ClassVar[bool] = False
    """Whether releases are integers, which masks can hide."""
    protects_ratings: ClassVar[bool] = False
    """Whether noise gives single ratings differential privacy, so that everything that leaves a party must be noised."""
    needs_everybody: ClassVar[bool] = False
    """Whether every sum must include all parties, because sums over changing sets would show single parties."""

    noisy: ClassVar[bool] = False
    """Whether the mechanism is noise."""

    @property
    def named(self) -> str:
        """Name what leaves a party, such as `rounded`."""
        return self.mechanism


class _RescaledGradients(_AnyMechanism):
    """The setting of every mechanism that works on rescaled gradients."""

    rescale: float = Field(1.0, gt=0)
    """Public factor that multiplies a gradient before it is clipped and divides it afterwards. It costs no privacy."""


class TernaryGradients(_RescaledGradients):
    """Gradients quantized to -1, 0 and 1 (Def. 4.2)."""

    mechanism: Literal["ternary"] = "ternary"
    """ternary: quantize each coordinate to -1, 0 or 1 at random (Def. 4.2)."""
    integers: ClassVar[bool] = True
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
    noisy: ClassVar[bool] = True
    epsilon: float = Field(1.0, gt=0)
    """Epsilon of the Laplace mechanism, per release."""
    clip: float = Field(0.5, gt=0)
    """Largest absolute value of a coordinate before it is protected (paper: 0.5). Mechanism none also takes unset: no limit."""


class SkellamGradients(_AnyMechanism):
    """Masked sums of gradients with Skellam noise: differential privacy of single ratings (docs/privacy.md)."""

    mechanism: Literal["skellam"] = "skellam"
    """skellam: add Skellam noise under masked sums, for differential privacy of single ratings over the whole training
    (docs/privacy.md)."""
    integers: ClassVar[bool] = True
    noisy: ClassVar[bool] = True
    protects_ratings: ClassVar[bool] = True
    noise_multiplier: float = Field(gt=0)
    """Standard deviation of the noise on a sum, as a multiple of the most that one rating can change it. `train --epsilon`
    chooses it."""
    clip: ClassVar[None] = None
    rescale: ClassVar[float] = 1.0


class OpenGradients(_RescaledGradients):
    """Unprotected gradients."""

    mechanism: Literal["none"] = "none"
    """none: send gradients unprotected."""
    clip: float | None = Field(0.5, gt=0)
    """Largest absolute value of a coordinate before it is protected (paper: 0.5). Mechanism none also takes unset: no limit."""

    @property
    def named(self) -> str:
        """Name what leaves a party."""
        return "unprotected"


class RoundedGradients(_AnyMechanism):
    """Gradients of solved models, rounded at random to 8 bits."""

    mechanism: Literal["rounded"] = "rounded"
    """rounded: round each coordinate at random to 8 bits, in a unit from the last public sum. Masks hide it; it has no guarantee of
    its own."""
    integers: ClassVar[bool] = True
    needs_everybody: ClassVar[bool] = True
    noise: float | None = Field(None, ge=0, le=10)
    """Standard deviation of the noise that a party adds to a column, as a multiple of the column's root mean square; three times
    that for the second model. unset: 0.25 for two parties, who see each other's gradients; for more, 0.1 if there is a second model,
    else none."""
    clip: ClassVar[None] = None
    rescale: ClassVar[float] = 1.0


GradientConfig = Annotated[
    TernaryGradients | LaplaceGradients | SkellamGradients | OpenGradients | RoundedGradients,
    Field(discriminator="mechanism"),
]
"""The protection of the gradients of public parameters (Sec. 4.5), by one of its mechanisms."""
