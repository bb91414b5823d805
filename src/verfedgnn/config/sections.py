"""The branches of the configuration: one typed field a setting, a sentence under each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from verfedgnn import plugins
from verfedgnn.plugins import origin

Gnn = Annotated[str, AfterValidator(plugins.check_gnn)]
"""The name of a GNN that is installed here."""

FRACTION_BITS = {12: 8, 16: 10, 32: 20, 64: 32}
"""Neighbourhoods travel as multiples of 2^-20 (32 bits, sums may reach +-2048), of 2^-10 (16 bits, +-32), of 2^-8 (12 bits, +-8)
or, exact ones, of 2^-32 (64 bits, +-2 billion)."""


class Section(BaseModel):
    """A branch of the tree: immutable, and nothing in it that is not declared here."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _unset(cls, values: Any) -> Any:
        """TOML has no null: the text "unset" stands for it."""
        return (
            {k: None if v == "unset" else v for k, v in values.items()}
            if isinstance(values, dict)
            else values
        )


class ModelConfig(Section):
    """The graph neural network (Sec. 3.2)."""

    gnn: Gnn = "gcn"
    """Aggregation and update: gcn, gat, ggnn, or a plug-in's (docs/python.md)."""
    code: str | None = Field(None, pattern=origin.PATTERN)
    """Which code a plug-in's GNN is: file or package and SHA-256. Training and `federation init` write it down by themselves."""
    dim: int = Field(6, ge=1, le=4096)
    """D, the size of an embedding (paper: 6)."""
    layers: int = Field(2, ge=1, le=16)
    """K, the number of propagation layers (paper: 2)."""
    activation: Literal["sigmoid", "tanh", "relu", "identity"] = "sigmoid"
    """The non-linearity of GCN's and GAT's update (paper: sigmoid)."""
    form: Literal["propagation", "messages", "factors"] = "propagation"
    """propagation: K layers over the embeddings (eq. 1-3); messages: one layer of private message embeddings (docs/model.md);
    factors: no graph, the embeddings themselves."""
    own_messages: bool = True
    """Whether a party's own items speak to its users, too; off, h_u takes in the others' messages only."""
    biases: bool = False
    """A private bias per item and a public one per user beside the product of embeddings (docs/model.md)."""
    residual: bool = False
    """A user bias and a user embedding that are private to each party, added to the public ones."""
    threshold: float | Literal["all"] | None = None
    """An item is a neighbour of a user from this rating on; unset: three quarters up the rating scale (4 of 5, 8 of 10); all:
    every rated item."""
    init_std: float = Field(0.1, ge=0)
    """Standard deviation of the initial embeddings; their mean is 0."""
    init_mix: float = Field(1.0, gt=0)
    """Initial a_k (eq. 3), as a multiple of the value at which layers of 1/2 predict the middle of the rating scale."""
    bound: float | None = Field(None, gt=0)
    """Bound on the l2 norm of every user's and item's embedding; after each step longer ones are shortened to it."""
    estimators: bool = True
    """Estimate a user's degree from the party's own share (Sec. 4.3); off, exact degrees are exchanged (unprotected)."""
    generator: bool = False
    """Take in neighbourhoods that are generated (FedSage+) instead of the others', which only train the generator."""

    @model_validator(mode="before")
    @classmethod
    def _there(cls, values: Any) -> Any:
        """A plug-in that is not installed is told with what is known of its code."""
        if isinstance(values, dict) and isinstance(values.get("gnn"), str):
            code = values.get("code")
            plugins.check_gnn(
                values["gnn"], code if isinstance(code, str) and re.match(origin.PATTERN, code) else None
            )
        return values


class ExchangeConfig(Section):
    """What parties tell each other about neighbourhoods (Sec. 4.4)."""

    mode: Literal["projected", "masked", "noised", "exact", "none"] = "projected"
    """projected: Phi X is sent; masked: X under masks, so that only sums are seen; noised: masked, with noise on the sums;
    exact: X itself (unprotected); none: no neighbourhood leaves a party."""
    ratio: float = Field(5.0, gt=0)
    """N/q, how many users one row of the projection stands for (paper: 5)."""
    block: int = Field(0, ge=0)
    """Block size B of a block-diagonal projection; 0, or at least N: one block, the paper's Phi."""
    reconstruction: Literal["adjoint", "scaled"] = "adjoint"
    """adjoint: Phi^T Y (eq. 14); scaled: Phi^T Y / (1 + (m+1)/q), the multiple with the least expected error."""
    refresh: int = Field(0, ge=0, le=16)
    """Exchange-only round trips before each training round; K of them make the exchange synchronous (exact)."""
    every: int = Field(1, ge=1, le=65535)
    """Rounds between two exchanges; in between the last sums are used again."""
    bits: Literal[12, 16, 32, 64] = 32
    """Bits of a number on the wire: 32 with 20 of them behind the point, 16 with 10, 12 with 8, or 64 with 32 (mode exact only,
    where degrees and attention may be large)."""
    backward: bool = False
    """Train messages on the others' losses, too: the summed protected user gradients stand for the gradient with respect to
    neighbourhoods, so nothing more is sent."""
    noise: float = Field(0.0, ge=0)
    """noised: standard deviation of the noise on the sum of the others."""
    row_clip: float | None = Field(None, gt=0)
    """noised: bound on the l2 norm of a user's row before it is noised."""


class GradientConfig(Section):
    """How the gradients of public parameters are protected (Sec. 4.5)."""

    mechanism: Literal["ternary", "laplace", "skellam", "none"] = "ternary"
    """ternary quantization (Def. 4.2), Laplace noise (Table 6), Skellam noise under masked sums (differential privacy of single
    ratings over the whole training, docs/privacy.md), or none (unprotected)."""
    r: float = Field(3.0, gt=0)
    """The ternary scheme's r: one release moves by at most 1/r in total variation for gradients 1 apart in l1."""
    epsilon: float = Field(1.0, gt=0)
    """The Laplace mechanism's epsilon per release."""
    noise_multiplier: float = Field(0.0, ge=0)
    """skellam: standard deviation of the noise on a sum, as a multiple of how far one rating can move it."""
    delta: float = Field(1e-6, gt=0, lt=1)
    """The delta at which a composed epsilon is reported."""
    clip: float | None = Field(0.5, gt=0)
    """Bound on each coordinate before ternary or Laplace (paper: 0.5)."""
    rescale_users: float = Field(1.0, gt=0)
    """Public factor s on the user embeddings' gradient before the clip, divided out after it; it costs no privacy."""
    rescale_weights: float = Field(1.0, gt=0)
    """The same for the shared weights (W, a_k, attention, GRU)."""
    rescale_by_ratings: bool = False
    """Divide these factors by the root of the number of ratings a coordinate sums over: an average user's, or all, at a party."""


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
