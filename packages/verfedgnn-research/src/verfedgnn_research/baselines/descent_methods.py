r"""Methods that descend by Adam on one table: MF with biases, SVD++, I-AutoRec and LightGCN, as a practitioner would try them.

Each tries nine options and keeps the one with the best validation; a descent stops when its validation no longer improves.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import product
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from verfedgnn.config import Config
from verfedgnn.core.errors import Interrupted
from verfedgnn.core.pairs import PartyInput
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.prepared_data import Prepared
from verfedgnn.training.own_models import OwnRatings
from verfedgnn_research.baselines.method import Where
from verfedgnn_research.baselines.simple_methods import (
    Fitted,
    ListMethod,
    SimpleMethod,
    valid_ndcg,
    valid_rmse,
)

BIAS_WEIGHT = 3.0
"""Weight of b_u^2 and b_v^2, in squared units of the scale."""
WEIGHTS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
"""Weights of the squared parameters that are tried, counted once for each user and item."""
BATCH = 1 << 13
"""Rated pairs of a step of LightGCN."""


class Descended(nn.Module):
    """Parameters, the loss of a step, and the vectors whose product predicts."""

    def __init__(self, own: OwnRatings, option: Any, generator: torch.Generator) -> None:
        super().__init__()
        self.own = own
        self.option = option
        self.generator = generator

    def draw(self, rows: int, columns: int, std: float = 0.1) -> nn.Parameter:
        """Return a parameter (rows, columns) of normal numbers."""
        drawn = std * torch.randn((rows, columns), generator=self.generator)
        return nn.Parameter(drawn.to(self.own.targets))

    def errors(self) -> Tensor:
        """Return the sum of squared errors of the training ratings, in units of the scale."""
        return (self.own.graph.products(*self.vectors()) - self.own.targets).square().sum()

    @abstractmethod
    def loss(self) -> Tensor:
        """Return the loss of one step."""

    @abstractmethod
    def vectors(self) -> tuple[Tensor, Tensor]:
        """Return users (N, C) and items (M, C)."""


class BiasedFactors(Descended):
    """r_uv = mu + b_u + b_v + p_u . q_v with 16 numbers (Koren et al., 2009)."""

    def __init__(self, own: OwnRatings, option: Any, generator: torch.Generator) -> None:
        super().__init__(own, option, generator)
        users, items = own.graph.users, own.graph.items
        self.p, self.q = self.draw(users, 16), self.draw(items, 16)
        self.user_bias, self.item_bias = self.draw(users, 1, 0.0), self.draw(items, 1, 0.0)

    def user_factors(self) -> Tensor:
        """Return p_u (N, 16)."""
        return self.p

    def vectors(self) -> tuple[Tensor, Tensor]:
        """Return (p_u, b_u, 1) and (q_v, 1, b_v)."""
        ones = [torch.ones_like(bias) for bias in (self.user_bias, self.item_bias)]
        users = torch.cat([self.user_factors(), self.user_bias, ones[0]], 1)
        return users, torch.cat([self.q, ones[1], self.item_bias], 1)

    def loss(self) -> Tensor:
        """Return squared errors and weighted squares of parameters."""
        biases = self.user_bias.square().sum() + self.item_bias.square().sum()
        factors = self.p.square().sum() + self.q.square().sum()
        loss: Tensor = self.errors() + BIAS_WEIGHT * biases + self.option * factors
        return loss


class ImplicitFactors(BiasedFactors):
    r"""SVD++ (Koren, 2008): p_u + |N(u)|^{-1/2} \sum_{w \in N(u)} y_w in the place of p_u."""

    def __init__(self, own: OwnRatings, option: Any, generator: torch.Generator) -> None:
        super().__init__(own, option, generator)
        self.y = self.draw(own.graph.items, 16)

    def user_factors(self) -> Tensor:
        """Return p_u with what the user's items say."""
        count = self.own.counts.clamp(min=1).sqrt().unsqueeze(1)
        return self.p + self.own.graph.sum_items(self.y) / count

    def loss(self) -> Tensor:
        """Return the loss of the factors and the weighted squares of y."""
        loss: Tensor = super().loss() + self.option * self.y.square().sum()
        return loss


class ItemAutoencoder(Descended):
    r"""I-AutoRec (Sedhain et al., 2015) of 64 numbers: :math:`r_{uv} = \mu + b_u + W_u \cdot \sigma(V^\top r_v / \sqrt{n_v} + c)`.

    The division by the number of raters is ours: without it, Adam saturates the sigmoid of items that many rated.
    """

    def __init__(self, own: OwnRatings, option: Any, generator: torch.Generator) -> None:
        super().__init__(own, option, generator)
        users = own.graph.users
        self.encoder, self.decoder = self.draw(users, 64), self.draw(users, 64)
        self.hidden_bias, self.user_bias = self.draw(1, 64, 0.0), self.draw(users, 1, 0.0)

    def vectors(self) -> tuple[Tensor, Tensor]:
        """Return (W_u, b_u) and the items' hidden layer with 1."""
        read = self.own.graph.sum_users(self.encoder, self.own.targets) / self.own.graph.item_degree.sqrt()
        hidden = torch.sigmoid(read + self.hidden_bias)
        users = torch.cat([self.decoder, self.user_bias], 1)
        return users, torch.cat([hidden, torch.ones_like(hidden[:, :1])], 1)

    def loss(self) -> Tensor:
        """Return squared errors and weighted squares of both matrices."""
        squares = self.encoder.square().sum() + self.decoder.square().sum()
        loss: Tensor = self.errors() + self.option * squares + BIAS_WEIGHT * self.user_bias.square().sum()
        return loss


class LightGraph(Descended):
    r"""LightGCN (He et al., 2020) of 64 numbers: the mean of x, A x, ..., A^K x with A = D^{-1/2} A D^{-1/2}, trained by BPR.

    An option is the number K of layers and the weight of the squared vectors of a pair.
    """

    def __init__(self, own: OwnRatings, option: Any, generator: torch.Generator) -> None:
        super().__init__(own, option, generator)
        self.users, self.items = self.draw(own.graph.users, 64), self.draw(own.graph.items, 64)
        self.by_user = own.counts.clamp(min=1).sqrt().unsqueeze(1)
        self.by_item = own.graph.item_degree.sqrt()

    def vectors(self) -> tuple[Tensor, Tensor]:
        """Return the means over layers of users and of items."""
        graph = self.own.graph
        users: Tensor = self.users
        items: Tensor = self.items
        total = users, items
        for _ in range(self.option[0]):
            users, items = (
                graph.sum_items(items / self.by_item) / self.by_user,
                graph.sum_users(users / self.by_user) / self.by_item,
            )
            total = total[0] + users, total[1] + items
        return total[0] / (1 + self.option[0]), total[1] / (1 + self.option[0])

    def loss(self) -> Tensor:
        """Return -log sigmoid of what a rated item scores above a random one, for a batch of rated pairs."""
        graph = self.own.graph
        edges = len(self.own.targets)
        chosen = torch.randint(edges, (min(edges, BATCH),), generator=self.generator)
        drawn = torch.randint(graph.items, (len(chosen),), generator=self.generator)
        rows = graph.edge_users[chosen].long(), graph.by_user[1][chosen].long(), drawn.to(chosen)
        users, items = self.vectors()
        user, wanted, other = (
            part.index_select(0, row) for part, row in zip((users, items, items), rows, strict=True)
        )
        above = (user * (wanted - other)).sum(1)
        first = zip((self.users, self.items, self.items), rows, strict=True)
        squares = sum(part.square().sum(1)[row].mean() for part, row in first) / 2
        loss: Tensor = nn.functional.softplus(-above).mean() + self.option[1] * squares
        return loss


class DescentMethod(SimpleMethod):
    """A model that descends from every option, of which the best on the validation part is kept."""

    model: ClassVar[type[Descended]]
    options: ClassVar[Sequence[Any]] = WEIGHTS
    rate: ClassVar[float] = 0.03
    steps: ClassVar[int] = 400
    """Most steps of a descent."""
    every: ClassVar[int] = 10
    """Steps between two validations."""
    patience: ClassVar[int] = 5
    """Validations without improvement after which a descent ends."""

    def fit(self, table: Prepared, config: Config, where: Where) -> Fitted:
        """Descend from every option and keep the best."""
        data = table.input
        own = OwnRatings(data)
        tried = [self._descend(data, own, option, config.seed, where) for option in self.options]
        return self._fitted(min(tried, key=lambda pair: pair[0])[1])

    def _descend(
        self, data: PartyInput, own: OwnRatings, option: Any, seed: int, where: Where
    ) -> tuple[float, PartyModel]:
        """Return the lowest validation error of one option, and its model."""
        chosen = self.model(own, option, torch.Generator().manual_seed(seed))
        optimizer = torch.optim.Adam(chosen.parameters(), self.rate)
        best: tuple[float, PartyModel] | None = None
        since = 0
        for step in range(1, self.steps + 1):
            optimizer.zero_grad()
            chosen.loss().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if where.stop():
                raise Interrupted(f"stopped while training {self.title}", "")
            if step % self.every:
                continue
            with torch.no_grad():
                model = self._as_model(own, *(vectors.detach().clone() for vectors in chosen.vectors()))
                error = self._error(data, model)
            since += 1
            if best is None or error < best[0]:
                best, since = (error, model), 0
            if since >= self.patience:
                break
        assert best is not None
        return best

    def _fitted(self, model: PartyModel) -> Fitted:
        return Fitted(model, None)

    def _as_model(self, own: OwnRatings, users: Tensor, items: Tensor) -> PartyModel:
        users, items = own.in_stars(users, items)
        return PartyModel(users, items, items)

    def _error(self, data: PartyInput, model: PartyModel) -> float:
        return valid_rmse(model, data)


class BiasedMF(DescentMethod):
    """Matrix factorisation with biases; pooled, it is CMF (Singh and Gordon, 2008) with equal weights of the parties."""

    name = "biased-mf"
    title = "MF with biases, tuned"
    settings = "the weight of the regulariser: nine values on the validation part"
    version = 2
    model = BiasedFactors


class SVDPlusPlus(DescentMethod):
    """SVD++: what a user has rated says something, too."""

    name = "svd++"
    title = "SVD++"
    settings = BiasedMF.settings
    model = ImplicitFactors


class AutoRec(DescentMethod):
    """I-AutoRec: an item by the ratings of its raters."""

    name = "autorec"
    title = "I-AutoRec"
    settings = BiasedMF.settings
    model = ItemAutoencoder


class LightGCN(ListMethod, DescentMethod):
    """LightGCN: lists by propagation over the graph of rated pairs."""

    name = "lightgcn"
    title = "LightGCN"
    settings = "layers and the weight of the regulariser: nine pairs on the validation part"
    model = LightGraph
    options = tuple(product((1, 2, 3), (1e-4, 1e-3, 1e-2)))
    rate = 0.01
    every = 20
    patience = 3

    def _fitted(self, model: PartyModel) -> Fitted:
        return Fitted(None, model)

    def _as_model(self, own: OwnRatings, users: Tensor, items: Tensor) -> PartyModel:
        return PartyModel(users, items, items)

    def _error(self, data: PartyInput, model: PartyModel) -> float:
        return -valid_ndcg(model, data)
