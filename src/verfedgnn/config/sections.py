"""The sections of the configuration that have one form: a typed field for each setting, and its explanation."""

from __future__ import annotations

from datetime import date
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

FRACTION_BITS = {32: 20, 64: 32}
"""Fractional bits of a fixed-point number, by its total number of bits. With 32 bits sums may reach +-2048, with 64 +-2 billion."""


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


class TrainingConfig(Section):
    """The rounds of a training, its optimiser, its regularisation and when it stops."""

    optimizer: Literal["adagrad", "sgd"] = "adagrad"
    """Optimiser of public and private parameters (paper: Adagrad)."""
    lr: float = Field(0.05, gt=0)
    """Learning rate (paper: 0.05)."""
    error_clip: float | None = Field(None, gt=0)
    """Error from which on the loss grows linearly (Huber), which bounds the effect of one rating. unset: squared error only."""
    l2: float = Field(1.0, ge=0)
    """Weight of the regulariser of eq. 5, (1/N) sum |e_u|^2 + (1/M) sum |e_v|^2."""
    l2_row: float = Field(0.0, ge=0)
    """Weight of |e_u|^2 and |e_v|^2, counted once per user or item."""
    l2_user_bias: float = Field(0.0, ge=0)
    """Weight of b_u^2, counted once per user."""
    l2_item_bias: float = Field(0.0, ge=0)
    """Weight of b_v^2, counted once per item."""
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
    checkpoint_every: int = Field(500, ge=1)
    """Rounds between two checkpoints."""


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
