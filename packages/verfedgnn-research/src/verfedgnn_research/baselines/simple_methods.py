"""What a practitioner would try first, on pooled data and at each party alone, tuned on the validation part.

No federation has all ratings in one place, as the *pooled* methods have. Their strongest form is the pipeline of preset best itself,
without protection: its models of all ratings, which each party mixes with its own, as the gate of a federation does.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.core.item_item import ItemScores
from verfedgnn.core.metrics import measure_errors, rank_each
from verfedgnn.core.pairs import Choices, Option, PartyInput
from verfedgnn.core.rating_means import fit_means
from verfedgnn.data import PartyData
from verfedgnn.runs.ledger import Ledger
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.prepared_data import Prepared, prepare
from verfedgnn.training.own_models import (
    OwnRatings,
    ease_model,
    liked,
    means_model,
    model_without_items,
    own_list_model,
    own_rating_models,
    popularity_model,
    residual_model,
    training_counts,
)
from verfedgnn.training.stacks import (
    FEWEST_NEWCOMERS,
    MARGIN,
    NEWCOMER_MARGIN,
    NEWCOMER_START,
    judge_users,
    search_weights,
    stack_lists,
    stack_ratings,
)
from verfedgnn_research.baselines.central_gnn import CENTRAL, handed_over
from verfedgnn_research.baselines.method import Declaration, Method, MethodResult, Where
from verfedgnn_research.baselines.pooled_parties import find_pooled_items, pool_parties, prepare_judged
from verfedgnn_research.baselines.solo_training import solo_config

NEIGHBOURS = (20, 100, 500)
"""Numbers of neighbours of ItemKNN that are tried."""
SHRINKAGE = (0.0, 20.0, 200.0)
"""Values that are tried for what is added to the denominator of the cosine."""
RIDGES = (1e-4, 1e-3, 1e-2, 0.03, 0.1, 0.3, 1.0, 10.0, 100.0)
"""Weights of EMCDR's ridge that are tried, in units of a column's mean square."""
EASE_OPTIONS = (1.0, 5.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 3000.0)
"""Values of EASE's lambda that are tried, for lists and for ratings."""
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
    settings = "nine options on the validation part"

    pooled = True
    """Whether one organisation has all ratings."""
    declares = Declaration(
        high_order=False, gradient_protection=False, cross_graph=False, storage="central", protects=CENTRAL
    )

    @abstractmethod
    def fit(self, table: Prepared, config: Config, where: Where) -> Fitted:
        """Fit the method on the training part, tuned on the validation part."""

    def finish(self, pooled: Fitted, table: Prepared, config: Config, where: Where) -> Fitted:
        """Return what a party serves of the pooled models of its items, by default these."""
        return pooled

    def train(self, parties: Sequence[PartyData], config: Config, where: Where) -> MethodResult:
        """Fit the pooled table, or each party's own."""
        began = time.perf_counter()
        prepared = prepare_judged(parties, config, where.device)
        if self.pooled:
            pool = pool_parties(parties)
            parts = np.concatenate([table.parts for table in prepared])
            (table,) = prepare([PartyData("pooled", pool)], config, where.device, [parts])
            whole = self.fit(table, config, where)
            rows = [torch.from_numpy(found).to(where.device) for found in find_pooled_items(parties, pool)]
            parted = (
                Fitted(*(None if model is None else _cut(model, own) for model in whole)) for own in rows
            )
            fitted = [
                self.finish(each, party, config, where) for each, party in zip(parted, prepared, strict=True)
            ]
            ledger = handed_over(parties)
        else:
            fitted = [self.fit(table, config, where) for table in prepared]
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

    def fit(self, table: Prepared, config: Config, where: Where) -> Fitted:
        """Count the training ratings."""
        return Fitted(None, popularity_model(table.input))


class Bias(SimpleMethod):
    """mu + b_u + b_v in closed form, with damping chosen on the validation part (`core.rating_means`)."""

    name = "bias"
    title = "User and item means"
    preset = "paper"
    settings = "two dampings: 30 pairs on the validation part"

    def configure(self, base: Config) -> Config:
        """Return `base`; only its split and seed matter."""
        return solo_config(base, 1.0)

    def fit(self, table: Prepared, config: Config, where: Where) -> Fitted:
        """Compute the means."""
        means = fit_means(table.input)
        return Fitted(means_model(means, means.user_offset, where.device), None)


class ItemKNN(ListMethod):
    r"""Items by their cosine with those that a user has, of the nearest K items: s = n_ij / (sqrt(n_i n_j) + shrinkage)."""

    name = "itemknn"
    title = "ItemKNN"

    def fit(self, table: Prepared, config: Config, where: Where) -> Fitted:
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
        return Fitted(None, model(min(options, key=lambda option: -valid_ndcg(model(option), data))))


class EASE(SimpleMethod):
    """EASE on pairs for lists, and on what means leave of the ratings."""

    name = "ease"
    title = "EASE"

    def fit(self, table: Prepared, config: Config, where: Where) -> Fitted:
        """Choose lambda of both."""
        data = table.input
        means = fit_means(data)
        simple = means_model(means, means.user_offset, where.device)
        ratings = residual_model(data, simple, Choices(), EASE_OPTIONS)
        return Fitted(ratings, ease_model(data, Choices(), EASE_OPTIONS))


class IALS(ListMethod):
    """Implicit alternating least squares of 64 numbers, with the solver of preset best."""

    name = "ials"
    title = "iALS"

    def fit(self, table: Prepared, config: Config, where: Where) -> Fitted:
        """Choose both strengths and the round."""
        data = table.input
        own = OwnRatings(data)
        found = []
        for unseen, pull in product(FACTORS, FACTORS):
            rule = own.list_strengths
            strengths = replace(rule, unseen=unseen * rule.unseen, pull=pull * rule.pull)
            given = {"strengths": strengths, "sizes": replace(own.sizes, lists=64)}
            found.append(own_list_model(data, config.seed, _Given(given), watch=where.watch, stop=where.stop))
        return Fitted(None, max(found, key=lambda model: valid_ndcg(model, data)))


class EMCDR(SimpleMethod):
    r"""EMCDR (Man et al., 2017): each party trains alone, and ridge regression maps users' vectors elsewhere to those at home.

    Vectors of all other parties stand side by side. A user without training ratings at a party gets the mapped vector there.
    """

    name = "emcdr"
    title = "EMCDR"
    settings = "the weight of the ridge: nine values on validation ratings of users who are new at the party"
    declares = replace(
        SimpleMethod.declares, storage="local", protects="ratings stay; vectors of users are handed over"
    )

    def fit(self, table: Prepared, config: Config, where: Where) -> Fitted:
        """Train a party's own models of ratings and of lists."""
        data = table.input
        ratings = own_rating_models(data, config.seed, Choices(), watch=where.watch, stop=where.stop)
        lists = own_list_model(data, config.seed, Choices(), watch=where.watch, stop=where.stop)
        return Fitted(ratings["alone"], lists)

    def train(self, parties: Sequence[PartyData], config: Config, where: Where) -> MethodResult:
        """Train every party alone, then map."""
        began = time.perf_counter()
        tables = prepare_judged(parties, config, where.device)
        own = [self.fit(table, config, where) for table in tables]
        counts = [training_counts(table.input) for table in tables]
        ledger = Ledger()
        for party, fitted, count in zip(parties, own, counts, strict=True):
            width = sum(model.users.shape[1] for model in fitted if model is not None)
            ledger.record("Vectors", "up", party.name, 4 * width * int((count > 0).sum()))
        found = []
        for kind, error in enumerate((valid_rmse, _list_error)):
            models = [model for fitted in own if (model := fitted[kind]) is not None]
            there = [torch.cat([m.users, torch.ones_like(m.users[:, :1])], 1) for m in models]
            there = [users * (count > 0).unsqueeze(1) for users, count in zip(there, counts, strict=True)]
            mapped = []
            for place, (table, model) in enumerate(zip(tables, models, strict=True)):
                elsewhere = torch.cat([users for p, users in enumerate(there) if p != place], 1)
                data = table.input
                new = replace(data, valid=data.valid.take(counts[place][data.valid.user.long()] == 0))
                tried = [
                    replace(model, vectors=map_users(elsewhere, model.users, counts[place] > 0, weight))
                    for weight in RIDGES
                ]
                mapped.append(min(tried, key=partial(error, data=new)))
            found.append(mapped)
        return MethodResult(found[0], ledger, 0, 0, time.perf_counter() - began, found[1])


def map_users(elsewhere: Tensor, own: Tensor, known: Tensor, weight: float) -> Tensor:
    """Return `own` (N, C), with rows of users who are not `known` mapped from `elsewhere` (N, K) as those of known users are.

    The map is a ridge regression with an intercept. Its penalty is `weight` times the mean variance of a column. Users without
    vectors elsewhere get the mean.
    """
    seen = (elsewhere != 0).any(1)
    both = known & seen
    there, here = elsewhere.double(), own.double()
    middle, mean = there[both].mean(0), here[both].mean(0)
    read = (there - middle) * seen.unsqueeze(1)
    gram = read[both].T @ read[both]
    gram.diagonal().add_(weight * gram.diagonal().mean().clamp(min=1e-9))
    mapped = mean + read @ torch.linalg.solve(gram, read[both].T @ (here[both] - mean))
    return torch.where(known.unsqueeze(1), own, mapped.to(own))


class Pipeline(SimpleMethod):
    """What preset best does at home, on one table: means, EASE, factors, raters and lists, mixed on the validation part.

    Of the pooled table, it takes the place of the federation: each party mixes it with its own models, separately for newcomers.
    """

    name = "pipeline"
    title = "Pipeline of preset best"
    version = 2

    def fit(self, table: Prepared, config: Config, where: Where) -> Fitted:
        """Train all models and mix them."""
        ratings, lists = self.train_all(table.input, config, where)
        mixed = stack_ratings(ratings, table.valid, training_counts(table.input))
        return Fitted(mixed.model, stack_lists(lists, table.input).model)

    def finish(self, pooled: Fitted, table: Prepared, config: Config, where: Where) -> Fitted:
        """Mix the pooled models with the party's own."""
        ratings, lists = self.train_all(table.input, config, where)
        assert pooled.ratings is not None
        assert pooled.lists is not None
        ratings["federated"], lists["federated"] = pooled.ratings, pooled.lists
        mixed = stack_ratings(ratings, table.valid, training_counts(table.input))
        return Fitted(mixed.model, mix_lists(list(lists.values()), table.input))

    def train_all(
        self, data: PartyInput, config: Config, where: Where
    ) -> tuple[dict[str, PartyModel], dict[str, PartyModel]]:
        """Return the models of ratings and of lists of one table by name, the simplest first."""
        means = fit_means(data)
        simple = means_model(means, means.user_offset, where.device)
        ratings = {"means": simple, "EASE": residual_model(data, simple, Choices())}
        ratings |= own_rating_models(data, config.seed, Choices(), watch=where.watch, stop=where.stop)
        lists = {"popularity": popularity_model(data), "EASE": ease_model(data, Choices())}
        lists["alone"] = own_list_model(data, config.seed, Choices(), watch=where.watch, stop=where.stop)
        return ratings, lists


@dataclass(frozen=True)
class _MixedLists(PartyModel):
    """Models of lists with weights for known users and for newcomers."""

    models: Sequence[PartyModel] = ()
    weights: tuple[Sequence[float], Sequence[float]] = ((), ())
    new: Tensor | None = None
    """Whether each user is a newcomer (N,)."""

    def score(self, users: Tensor) -> Tensor:
        """Return the weighted sums of the scores, given users' rows."""
        assert self.new is not None
        new = self.new[users.long()].unsqueeze(1)
        pairs = zip(*self.weights, strict=True)
        weights = (torch.where(new, newcomers, known) for known, newcomers in pairs)
        parts = (weight * model.score(users) for weight, model in zip(weights, self.models, strict=True))
        return torch.stack(list(parts)).sum(0)


def mix_lists(models: Sequence[PartyModel], data: PartyInput) -> PartyModel:
    """Mix a party's models of lists by NDCG@20 on its validation part; popularity is the first, and the last knows newcomers.

    `stack_lists` does this with one model that has weights between items. Here the pooled one has them, too.
    """
    wanted = liked(data.valid, data.scale)
    new = training_counts(data) == 0
    theirs = new[wanted.user.long()]
    known = search_weights(judge_users(models, data, wanted.take(~theirs)), None, MARGIN)
    judged = judge_users([models[0], models[-1]], data, wanted.take(theirs))
    some = torch.arange(min(FEWEST_NEWCOMERS, data.users), device=data.train.user.device)
    spread = (
        judged.spread if len(judged.hidden) else [float(m.score(some).std()) for m in (models[0], models[-1])]
    )
    found = [1 / max(spread[0], 1e-9), NEWCOMER_START / max(spread[1], 1e-9)]
    if len(judged.hidden) >= FEWEST_NEWCOMERS:
        options = (found, [found[0], 0.0], [0.0, found[1]])
        found = max(options, key=lambda weights: float(judged.ndcg(weights).mean()))
        found = search_weights(judged, found, NEWCOMER_MARGIN)
    newcomers = [found[0], *[0.0] * (len(models) - 2), found[1]]
    whole = models[-1]
    return _MixedLists(
        whole.vectors, whole.items, whole.embeddings, models=models, weights=(known, newcomers), new=new
    )


class AtHome:
    """Changes a method: each party fits its own ratings."""

    pooled = False
    declares = replace(
        SimpleMethod.declares,
        gradient_protection=True,
        storage="local",
        protects="everything: nothing is sent",
    )


def at_home(method: type[SimpleMethod]) -> SimpleMethod:
    """Return a method as each party fits it on its own ratings."""
    about = {"name": f"{method.name}-alone", "title": f"{method.title}, alone", "__doc__": method.__doc__}
    found: SimpleMethod = type(f"{method.__name__}Alone", (AtHome, method), about)()
    return found


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


def valid_ndcg(model: PartyModel, data: PartyInput) -> float:
    """Return NDCG@20 on the validation part."""
    found = rank_each(
        model.score, data.users, data.items, [data.train], liked(data.valid, data.scale), sample=True
    )
    return float(found.ndcg.mean()) if len(found.ndcg) else 0.0


def _list_error(model: PartyModel, data: PartyInput) -> float:
    return -valid_ndcg(model, data)


def valid_rmse(model: PartyModel, data: PartyInput) -> float:
    """Return the RMSE on the validation part, 0 without ratings."""
    return measure_errors(model.vectors, model.items, data.valid, data.scale).rmse or 0.0
