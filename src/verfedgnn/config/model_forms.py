"""The forms of the model: propagation over the graph, plain factors, or factors that are solved at home."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from verfedgnn import plugins
from verfedgnn.config.sections import Section

Gnn = Annotated[str, AfterValidator(plugins.check_gnn)]
"""The name of an installed GNN."""


class _AnyForm(Section):
    """The settings that every form of the model has."""

    form: str
    gnn: Gnn = "gcn"
    """GNN that aggregates neighbours and updates embeddings: gcn, gat, ggnn, or the name of a plug-in (docs/python.md)."""
    code: str | None = Field(None, pattern=plugins.PATTERN)
    """File or package and SHA-256 of a plug-in's code. Training and `federation init` fill it in."""
    dim: int = Field(6, ge=1, le=4096)
    """D, the size of an embedding (paper: 6). 0, for form solved: by the number of ratings a user (docs/model.md)."""
    solved: ClassVar[bool] = False
    """Whether items are solved at home, and users take one preconditioned step a round (docs/model.md)."""

    @model_validator(mode="before")
    @classmethod
    def _check_plugin(cls, values: Any) -> Any:
        """Report a plug-in that is not installed together with the code that the configuration names."""
        if isinstance(values, dict) and isinstance(values.get("gnn"), str):
            code = values.get("code")
            plugins.check_gnn(
                values["gnn"], code if isinstance(code, str) and re.match(plugins.PATTERN, code) else None
            )
        return values


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
