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
    """The rounds of a training, its optimiser, its regularisation and when it stops."""

    user_blocks: int = Field(1, ge=1, le=100_000)
    """Number of blocks into which users are divided. Each round works on one block in turn and sends nothing about the others."""
    optimizer: Literal["adagrad", "sgd"] = "adagrad"
    """Optimiser of public and private parameters (paper: Adagrad)."""
    lr: float = Field(0.05, gt=0)
    """Learning rate (paper: 0.05)."""
    lr_weights: float = Field(1.0, gt=0)
    """Factor on the learning rate for shared weights."""
    lr_private: float = Field(1.0, gt=0)
    """Factor on the learning rate for private parameters."""
    lr_messages: float = Field(1.0, gt=0)
    """Factor on the learning rate for message embeddings."""
    average: float = Field(0.0, ge=0, lt=1)
    """Decay of a running average of all parameters, which is validated and kept instead of the parameters. 0: no average."""
    from_means: bool = False
    """Start the biases of items at their means, and those of users at the means that the parties share with the neighbourhoods."""
    error_clip: float | None = Field(None, gt=0)
    """Error from which on the loss grows linearly (Huber), which bounds the effect of one rating. unset: squared error only."""
    objective: Literal["rating", "ranking"] = "rating"
    """Loss to minimise. rating: squared error (eq. 5); ranking: softmax over the party's catalogue for every liked item."""
    negatives: int = Field(0, ge=0)
    """Items of the catalogue that a round samples for the softmax of objective ranking. 0: all items."""
    l2: float = Field(1.0, ge=0)
    """Weight of the regulariser of eq. 5, (1/N) sum |e_u|^2 + (1/M) sum |e_v|^2."""
    l2_row: float = Field(0.0, ge=0)
    """Weight of |e_u|^2 (public and private embeddings), |e_v|^2 and |y_v|^2, counted once per user or item."""
    l2_rating: float = Field(0.0, ge=0)
    """Weight of |e_u|^2 + |e_v|^2, counted for every rating of v by u."""
    l2_messages: float = Field(0.0, ge=0)
    """Weight of |y_v|^2, counted for every rating of v."""
    l2_raters: float = Field(36.0, ge=0)
    """Weight of |w_u|^2 of the second model (model.raters), counted once per user."""
    l2_readers: float = Field(12.0, ge=0)
    """Weight of |z_u|^2 + |y_u|^2 of the second model, from which its items are computed, counted once per user."""
    read: float = Field(0.7, gt=0, lt=1)
    """Share of its ratings that an item of the second model (model.raters) reads in a round. It predicts the others."""
    reads: int = Field(1, ge=1, le=100)
    """Times that an item of the second model reads in a round, each time another share. The gradient is the average over them. More
    reads cost a party time and no message."""
    l2_user_bias: float = Field(0.0, ge=0)
    """Weight of b_u^2 (public and private biases), counted once per user."""
    l2_item_bias: float = Field(0.0, ge=0)
    """Weight of b_v^2, counted once per item."""
    l2_residual: float = Field(0.0, ge=0)
    """Weight of the squared private user bias and embedding (model.residual), counted for every rating of u at the party."""
    batch: int = Field(5000, ge=0)
    """Training ratings per round, over all parties. 0: all ratings."""
    epochs: int = Field(50, ge=1)
    """Passes over the training ratings. The number of rounds is epochs x ratings / batch."""
    list_epochs: float = Field(1.0, gt=0, le=100)
    """Passes of the model that orders lists, for each pass of the model that predicts ratings."""
    first_epochs: int | None = Field(None, ge=1)
    """Passes of the first training, in settings for trainings that continue it. unset: these are settings for a first training."""
    participation: float = Field(1.0, gt=0, le=1)
    """Share of the parties that take part in a round (Sec. 4.6)."""
    gate: bool = False
    """After training, let every party mix the federated model with what it has alone, by its own validation part."""
    newcomer_rounds: int = Field(0, ge=0)
    """First rounds of a training with a gate, at most a quarter of all, in which each party withholds all ratings of a tenth of its
    users. It learns on them how to serve newcomers. 0: withhold nothing."""
    evaluate_every: int = Field(0, ge=0)
    """Rounds between two validations. 0: once per epoch."""
    patience: int = Field(0, ge=0)
    """Number of validations without improvement after which training stops. 0: train to the end. The best round is kept in both cases."""
    checkpoint_every: int = Field(500, ge=1)
    """Rounds between two checkpoints."""

    @property
    def withheld_rounds(self) -> int:
        """Number of first rounds without the ratings of withheld users; a validation takes place in the last of them."""
        rounds = min(self.newcomer_rounds, self.epochs // 4) if self.gate else 0
        return rounds - rounds % max(1, self.evaluate_every)

    @property
    def ranks(self) -> bool:
        """Whether the training ranks items instead of predicting ratings."""
        return self.objective == "ranking"

    def judged(self, error: float) -> dict[str, float]:
        """Return a validation error under its metric's name: RMSE, or NDCG@20 = 1 - error for a ranking."""
        return {"ndcg@20": 1 - error} if self.ranks else {"rmse": error}

    def error_of(self, judged: Mapping[str, float]) -> float:
        """Return the validation error from what `judged` returned, or from a line of history.jsonl."""
        name = "ndcg@20" if self.ranks else "rmse"
        value = judged[name] if name in judged else judged[f"valid_{name}"]
        return 1 - value if self.ranks else value


class SplitConfig(Section):
    """The split of ratings into training, validation and test parts."""

    kind: Literal["rating", "time", "newcomers"] = "rating"
    """rating: at random by `fractions`; time: each user's last rating at a party tests, the one before validates; newcomers:
    at each party, everything of a tenth of the users tests, and of another tenth validates."""
    fractions: tuple[float, float, float] = (0.6, 0.2, 0.2)
    """Shares of training, validation and test (paper: 60/20/20). With newcomers, 0.8, 0.1 and 0.1 of the users are used."""

    @model_validator(mode="after")
    def _check_sum(self) -> SplitConfig:
        if abs(sum(self.fractions) - 1) > 1e-6 or min(self.fractions) < 0:
            raise ValueError(f"split.fractions = {list(self.fractions)} must be shares that add up to 1")
        return self
