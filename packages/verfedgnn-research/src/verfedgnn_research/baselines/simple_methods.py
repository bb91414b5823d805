"""What a practitioner would try first, on pooled data and at each party alone, tuned on the validation part.

*Pooled* is a bound: no federation has all ratings in one place. Its strongest form is the pipeline of preset best itself, the same
models, mixture and choices, on pooled data without protection.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.core.item_item import ItemScores
from verfedgnn.core.metrics import rank_each
from verfedgnn.core.pairs import Choices, Option, PartyInput
from verfedgnn.data import PartyData
from verfedgnn.runs.ledger import Ledger
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.prepared_data import Prepared, prepare, split_ratings
from verfedgnn.training.own_models import (
    OwnRatings,
    ease_model,
    fit_party_means,
    liked,
    means_model,
    model_without_items,
    own_list_model,
    own_rating_models,
    popularity_model,
    residual_model,
    training_counts,
)
from verfedgnn.training.stacks import stack_lists, stack_ratings
from verfedgnn_research.baselines.central_gnn import CENTRAL, handed_over
from verfedgnn_research.baselines.method import Declaration, Method, MethodResult, Where
from verfedgnn_research.baselines.pooled_parties import find_pooled_items, pool_parties

NEIGHBOURS = (20, 100, 500)
"""Numbers of neighbours of ItemKNN that are tried."""
SHRINKAGE = (0.0, 20.0, 200.0)
"""Values that are tried for what is added to the denominator of the cosine."""
MOST_ITEMS = 8192
"""Most items of ItemKNN, those with the most ratings. EASE has half as many (`core/item_item.py`)."""
FACTORS = (0.25, 1.0, 4.0)
"""Multiples of the two strengths of iALS that are tried."""


class Fitted(NamedTuple):
    """What a method fits on one table: models of ratings and of lists; None where it has none."""

    ratings: PartyModel | None
    lists: PartyModel | None


class SimpleMethod(Method):
    """A method that fits one table: all ratings pooled, or those of each party."""

    preset = "best"
    by_gnn = False
    settings = "chosen on the validation part"

    pooled = True
    """Whether one organisation has all ratings."""
    declares = Declaration(
        high_order=False, gradient_protection=False, cross_graph=False, storage="central", protects=CENTRAL
    )

    @abstractmethod
    def fit(self, table: Prepared, seed: int, where: Where) -> Fitted:
        """Fit the method on the training part, tuned on the validation part."""

    def train(self, parties: Sequence[PartyData], config: Config, where: Where) -> MethodResult:
        """Fit the pooled table, or each party's own."""
        began = time.perf_counter()
        if self.pooled:
            pool = pool_parties(parties)
            parts = np.concatenate([split_ratings(party, config.split, config.seed) for party in parties])
            (table,) = prepare([PartyData("pooled", pool)], config, where.device, [parts])
            whole = self.fit(table, config.seed, where)
            rows = [torch.from_numpy(found).to(where.device) for found in find_pooled_items(parties, pool)]
            fitted = [
                Fitted(*(None if model is None else _cut(model, own) for model in whole)) for own in rows
            ]
            ledger = handed_over(parties)
        else:
            fitted = [self.fit(table, config.seed, where) for table in prepare(parties, config, where.device)]
            ledger = Ledger()
        ratings = [each.ratings for each in fitted if each.ratings is not None]
        lists = [each.lists for each in fitted if each.lists is not None]
        return MethodResult(ratings or lists, ledger, 0, 0, time.perf_counter() - began, lists or None)


class ListMethod(SimpleMethod):
    """A simple method that orders lists and predicts no ratings."""

    def configure(self, base: Config) -> Config:
        """Return the configuration of the model of lists, which has no RMSE."""
        return base if base.ranks else base.for_lists()


class Popularity(ListMethod):
    """The items with the most training ratings, the same for all users."""

    name = "popularity"
    title = "Popularity"
    settings = "none"

    def fit(self, table: Prepared, seed: int, where: Where) -> Fitted:
        """Count the training ratings."""
        return Fitted(None, popularity_model(table.input))


class ItemKNN(ListMethod):
    r"""Items by their cosine with those that a user has, of the nearest K items: s = n_ij / (sqrt(n_i n_j) + shrinkage)."""

    name = "itemknn"
    title = "ItemKNN"

    def fit(self, table: Prepared, seed: int, where: Where) -> Fitted:
        """Choose the number of neighbours and the shrinkage."""
        data = table.input
        user, item = data.train.user.cpu().numpy(), data.train.item.cpu().numpy()
        kept = np.sort(np.argsort(-np.bincount(item, minlength=data.items), kind="stable")[:MOST_ITEMS])
        place = np.full(data.items, -1)
        place[kept] = np.arange(len(kept))
        inside = place[item] >= 0
        shape = (data.users, len(kept))
        rated = scipy.sparse.csr_matrix(
            (np.ones(inside.sum(), np.float32), (user[inside], place[item[inside]])), shape
        )
        rated.sum_duplicates()
        together = torch.from_numpy((rated.T @ rated).toarray())
        count = together.diagonal().clone()
        together.fill_diagonal_(0.0)
        without = model_without_items(data)
        places = torch.from_numpy(kept)
        pointers = torch.from_numpy(rated.indptr.astype(np.int64))
        history = torch.from_numpy(rated.indices.astype(np.int32))

        def model(option: tuple[int, float]) -> PartyModel:
            neighbours, shrinkage = option
            similar = together / (torch.outer(count, count).sqrt() + shrinkage).clamp(min=1e-6)
            least = similar.topk(min(neighbours, len(kept)), 0).values[-1]
            similar = torch.where(similar >= least, similar, 0.0)
            return replace(without, item_scores=ItemScores(similar, places, pointers, history, data.items))

        options = list(product(NEIGHBOURS, SHRINKAGE))
        return Fitted(None, model(min(options, key=lambda option: -_ndcg(model(option), data))))


class EASE(SimpleMethod):
    """EASE on pairs for lists, and on what means leave of the ratings."""

    name = "ease"
    title = "EASE"

    def fit(self, table: Prepared, seed: int, where: Where) -> Fitted:
        """Choose lambda of both."""
        data, choices = table.input, Choices()
        means = fit_party_means(data)
        simple = means_model(means, means.user_offset, where.device)
        return Fitted(residual_model(data, simple, Choices()), ease_model(data, choices))


class IALS(ListMethod):
    """Implicit alternating least squares of 64 numbers, with the solver of preset best."""

    name = "ials"
    title = "iALS"

    def fit(self, table: Prepared, seed: int, where: Where) -> Fitted:
        """Choose both strengths and the round."""
        data = table.input
        own = OwnRatings.of(data)
        found = []
        for unseen, pull in product(FACTORS, FACTORS):
            rule = own.list_strengths
            strengths = replace(rule, unseen=unseen * rule.unseen, pull=pull * rule.pull)
            given = {"strengths": strengths, "sizes": replace(own.sizes, lists=64)}
            found.append(own_list_model(data, seed, _Given(given), watch=where.watch, stop=where.stop))
        return Fitted(None, max(found, key=lambda model: _ndcg(model, data)))


class Pipeline(SimpleMethod):
    """What preset best does at home, on one table: means, EASE, factors, raters and lists, mixed on the validation part."""

    name = "pipeline"
    title = "Pipeline of preset best"

    def fit(self, table: Prepared, seed: int, where: Where) -> Fitted:
        """Train all models and mix them."""
        data = table.input
        means = fit_party_means(data)
        simple = means_model(means, means.user_offset, where.device)
        ratings = {"means": simple, "EASE": residual_model(data, simple, Choices())}
        ratings |= own_rating_models(data, seed, Choices(), watch=where.watch, stop=where.stop)
        lists = {"popularity": popularity_model(data), "EASE": ease_model(data, Choices())}
        lists["alone"] = own_list_model(data, seed, Choices(), watch=where.watch, stop=where.stop)
        mixed = stack_ratings(ratings, table.valid, training_counts(data))
        return Fitted(mixed.model, stack_lists(lists, data).model)


class _Alone:
    """Changes a method: each party fits its own ratings."""

    pooled = False
    declares = Declaration(
        high_order=False,
        gradient_protection=True,
        cross_graph=False,
        storage="local",
        protects="everything: nothing is sent",
    )


class ItemKNNAlone(_Alone, ItemKNN):
    """ItemKNN on a party's own ratings."""

    name = "itemknn-alone"
    title = "ItemKNN, alone"


class EASEAlone(_Alone, EASE):
    """EASE on a party's own ratings."""

    name = "ease-alone"
    title = "EASE, alone"


class IALSAlone(_Alone, IALS):
    """iALS on a party's own ratings."""

    name = "ials-alone"
    title = "iALS, alone"


class PipelineAlone(_Alone, Pipeline):
    """What a party of preset best would serve if it had not joined."""

    name = "pipeline-alone"
    title = "Pipeline of preset best, alone"


class _Given(Choices):
    """Choices of which some are given, and the others are made."""

    def __init__(self, given: dict[str, Any]) -> None:
        super().__init__()
        self.given = given

    def make(self, name: str, choose: Callable[[], Option]) -> Option:
        """Return what is given; else record what `choose` returns."""
        return self.given[name] if name in self.given else super().make(name, choose)


@dataclass(frozen=True)
class _CutModel(PartyModel):
    """A party's items of a pooled model, whose users bring the items that they have elsewhere."""

    whole: PartyModel | None = None
    rows: Tensor | None = None

    def score(self, users: Tensor) -> Tensor:
        """Return the scores of the party's items, given users' rows."""
        assert self.whole is not None
        return self.whole.score(users)[:, self.rows]


def _cut(model: PartyModel, rows: Tensor) -> PartyModel:
    return _CutModel(model.users, model.items[rows], model.embeddings[rows], whole=model, rows=rows)


def _ndcg(model: PartyModel, data: PartyInput) -> float:
    found = rank_each(
        model.score, data.users, data.items, [data.train], liked(data.valid, data.scale), sample=True
    )
    return float(found.ndcg.mean()) if len(found.ndcg) else 0.0
