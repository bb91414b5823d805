"""The sections of the configuration that have one form: a typed field for each setting, and its explanation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

FRACTION_BITS = {12: 8, 16: 10, 32: 20, 64: 32}
"""Fractional bits of a fixed-point number, by its total number of bits.

With 12 bits sums may reach +-8, with 16 bits +-32, with 32 bits +-2048 and with 64 bits +-2 billion."""


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
    """Rounds, steps and when to stop."""

    user_blocks: int = Field(1, ge=1, le=100_000)
    """Parts into which users are cut; a round works on one of them, by turns, and sends nothing about the others."""
    optimizer: Literal["adagrad", "sgd"] = "adagrad"
    """The rule for public and private steps (paper: Adagrad)."""
    lr: float = Field(0.05, gt=0)
    """Learning rate (paper: 0.05)."""
    lr_weights: float = Field(1.0, gt=0)
    """Factor on the learning rate of the shared weights."""
    lr_private: float = Field(1.0, gt=0)
    """Factor on the learning rate of private parameters."""
    lr_messages: float = Field(1.0, gt=0)
    """The same for message embeddings."""
    average: float = Field(0.0, ge=0, lt=1)
    """Decay of the running average of all parameters that is validated and kept in their place; 0: no average."""
    error_clip: float | None = Field(None, gt=0)
    """Errors count linearly beyond this (Huber), so that no rating pulls harder than that."""
    objective: Literal["rating", "ranking"] = "rating"
    """rating: squared error (eq. 5); ranking: softmax over the party's catalogue, for every liked item."""
    negatives: int = Field(0, ge=0)
    """ranking: items of the catalogue drawn for the softmax in a round; 0: all."""
    l2: float = Field(1.0, ge=0)
    """Weight of the regulariser of eq. 5, (1/N) sum |e_u|^2 + (1/M) sum |e_v|^2."""
    l2_row: float = Field(0.0, ge=0)
    """Weight of |e_u|^2 (also of a party's own), |e_v|^2 and |y_v|^2, once each."""
    l2_rating: float = Field(0.0, ge=0)
    """Weight of |e_u|^2 + |e_v|^2 for every rating of u for v."""
    l2_messages: float = Field(0.0, ge=0)
    """Weight of |y_v|^2 for every rating of v."""
    l2_user_bias: float = Field(0.0, ge=0)
    """Weight of b_u^2 (also of a party's own), once each."""
    l2_item_bias: float = Field(0.0, ge=0)
    """Weight of b_v^2, once each."""
    l2_residual: float = Field(0.0, ge=0)
    """Weight of a party's own user bias and embedding, squared, for every rating of u there."""
    batch: int = Field(5000, ge=0)
    """Training ratings per round over all parties; 0: all of them."""
    epochs: int = Field(50, ge=1)
    """Passes over the training ratings; rounds = epochs x ratings / batch."""
    participation: float = Field(1.0, gt=0, le=1)
    """Share of the parties that take part in a round (Sec. 4.6)."""
    gate: bool = False
    """After training, every party also trains the model alone and mixes both as its own validation part says."""
    evaluate_every: int = Field(0, ge=0)
    """Rounds between two validations; 0: once an epoch."""
    patience: int = Field(0, ge=0)
    """Stop after so many validations without a better one; 0: train to the end. The best one is kept either way."""
    checkpoint_every: int = Field(500, ge=1)
    """Rounds between two checkpoints."""

    @property
    def ranks(self) -> bool:
        """Whether items are ranked, and no ratings predicted."""
        return self.objective == "ranking"

    def judged(self, error: float) -> dict[str, float]:
        """A validation's error under its name: RMSE, or for a ranking NDCG@20, which is 1 - error."""
        return {"ndcg@20": 1 - error} if self.ranks else {"rmse": error}

    def error_of(self, judged: Mapping[str, float]) -> float:
        """The way back from `judged`, also among other values and under the names of history.jsonl."""
        name = "ndcg@20" if self.ranks else "rmse"
        value = judged[name] if name in judged else judged[f"valid_{name}"]
        return 1 - value if self.ranks else value


class SplitConfig(Section):
    """Which ratings train, select and judge."""

    kind: Literal["rating", "time"] = "rating"
    """rating: at random by `fractions`; time: each user's last rating at a party tests, the one before validates."""
    fractions: tuple[float, float, float] = (0.6, 0.2, 0.2)
    """Shares of training, validation and test (paper: 60/20/20)."""

    @model_validator(mode="after")
    def _check_sum(self) -> SplitConfig:
        if abs(sum(self.fractions) - 1) > 1e-6 or min(self.fractions) < 0:
            raise ValueError(f"split.fractions = {list(self.fractions)} must be shares that add up to 1")
        return self
