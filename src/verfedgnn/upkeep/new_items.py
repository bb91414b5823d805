r"""Items that come after a training: a vector from their first ratings, at the party, without the federation.

A served prediction is :math:`x_u \cdot h_v`, whether the vectors come from one model or from the gate's mixture of several
(`training/stacks.py`). The party's trained items have a mean and a covariance,

.. math::
    h = m + F z, \qquad F F^\top = \mathrm{Cov}(h_v), \qquad z \sim N(0, I)

and a new item gets the most probable :math:`z` given its ratings, while all users stay as they are. For ratings, with
:math:`a_u = F^\top x_u` and the party's squared error :math:`\sigma^2` on its validation part,

.. math::
    z = \Big(I + \sum_u a_u a_u^\top / \sigma^2\Big)^{-1} \sum_u a_u (r_u - x_u \cdot m) / \sigma^2 .

An item with n ratings counts with weight n for ratings: a new rating is more often one of a popular item, and those are rated
higher. Without ratings, a prediction is therefore the user's mean over ratings. For lists all items count alike.

Columns in which items do not differ (the 1 beside a user's bias) keep their value. Columns of several models are correlated, so
one regression gives all parts of a mixture: the item's mean, and its vectors in the party's own model and in the federated one.

For a model of lists, z maximises the likelihood of the item's likes. Users come with the weights
:math:`w_u = n_u / Z_u`, where :math:`n_u` counts the user's likes in training and :math:`Z_u = \sum_j e^{s_{uj}}` runs over the
trained items. The first like says who likes the item. The others also say how popular it is, if the item has been on offer for a
known share :math:`\tau` of the training period since then:

.. math::
    \sum_{u \text{ likes}} x_u \cdot h - \log W(h) - \tau W(h) - |z|^2 / 2, \qquad W(h) = \sum_u w_u e^{x_u \cdot h} .

Without times, :math:`\tau` is unknown. All n likes then say only who likes the item, :math:`- n \log W(h)`, and its popularity
comes from the prior.

Weights between items (EASE) do not exist for a new item. Each trained item's share of them is therefore added to its vector first,
by least squares over the users, so that the prior covers it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray

from verfedgnn.core.errors import ConfigError, DataError
from verfedgnn.core.item_item import ItemScores
from verfedgnn.core.rating_scale import upper_quarter
from verfedgnn.data import TRAIN, VALID
from verfedgnn.data.ids import find_positions
from verfedgnn.data.rating_reader import read_table
from verfedgnn.data.ratings import Ratings
from verfedgnn.data.table_sources import read_item_texts
from verfedgnn.data.value_parsing import latest_plausible_time
from verfedgnn.runs.added_items import (
    AddedItem,
    added_file,
    check_item,
    lock_added,
    read_added,
    rewrite_added,
)
from verfedgnn.runs.forget_record import ForgottenUsers
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.party_tables import safe_names
from verfedgnn.runs.run import Run
from verfedgnn.runs.run_folder import FORGOTTEN

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]
SAMPLE = 4096
"""Most users over which the sum in the likelihood of lists runs."""
NEWTON_STEPS = 30
LARGEST_ADDED = 64_000_000
"""Size of a party's added items in bytes from which on no more are taken: all are in the memory of every server."""


@dataclass(frozen=True)
class ItemPrior:
    """What a party's trained model says about an item that it has not seen: its vector is h = mean + factor z."""

    users: NDArray[np.float32]
    """Vectors of all users (N, C)."""
    mean: Floats
    """m (C,)."""
    factor: Floats
    """F (C, R), without directions in which items do not differ."""
    variance: float
    """Squared error of a predicted rating; not used by a model of lists."""
    liked_from: float
    """Lowest rating that a model of lists counts as liked."""
    active: tuple[Rows, Floats] | None = None
    """In a model of lists, a sample of users and the logarithm of the weight w_u of each, scaled up to all users."""

    def estimate(
        self,
        users: Rows,
        ratings: NDArray[np.float32],
        *,
        exposure: float | None = None,
    ) -> NDArray[np.float32]:
        """Return the vector (C,) of an item that these users rated; without ratings, the mean of the distribution.

        `exposure` is the time since the item's first rating, as a share of the training period; only a model of lists uses it.
        """
        if self.active is None:
            z = self._fit_ratings(users, ratings)
        else:
            z = self._fit_likes(*self.active, users[ratings >= self.liked_from], exposure)
        return (self.mean + self.factor @ z).astype(np.float32)

    def _fit_ratings(self, users: Rows, ratings: NDArray[np.float32]) -> Floats:
        vectors = self.users[users].astype(np.float64)
        slopes = vectors @ self.factor
        left = ratings - vectors @ self.mean
        matrix = np.eye(slopes.shape[1]) + slopes.T @ slopes / self.variance
        return np.linalg.solve(matrix, slopes.T @ left / self.variance).astype(np.float64)

    def _fit_likes(self, active: Rows, log_weight: Floats, likes: Rows, exposure: float | None) -> Floats:
        size = self.factor.shape[1]
        if not len(likes) or not size:
            return np.zeros(size)
        every = self.users[active].astype(np.float64)
        slopes = every @ self.factor
        level = every @ self.mean + log_weight
        wanted = (self.users[likes].astype(np.float64) @ self.factor).sum(0)

        def derivatives(z: Floats) -> tuple[Floats, Floats]:
            scores = level + slopes @ z
            highest = scores.max()
            share = np.exp(scores - highest)
            total = share.sum()
            share /= total
            centre = share @ slopes
            second = (slopes * share[:, None]).T @ slopes
            count = float(len(likes)) if exposure is None else 1.0
            expected = 0.0 if exposure is None else exposure * float(np.exp(min(highest, 20.0)) * total)
            slope = wanted - (count + expected) * centre - z
            return slope, np.eye(size) + (count + expected) * second - count * np.outer(centre, centre)

        return climb(derivatives, size)


def climb(derivatives: Callable[[Floats], tuple[Floats, Floats]], size: int) -> Floats:
    """Return the maximum of a concave function of z (R,) by Newton's method, from its slope (R,) and negative curvature (R, R).

    Long steps are shortened so that no typical score jumps by more than a few units.
    """
    z = np.zeros(size)
    for _ in range(NEWTON_STEPS):
        slope, curve = derivatives(z)
        step = np.linalg.solve(curve, slope)
        z = z + step * min(1.0, 3.0 / max(float(np.linalg.norm(step)), 1e-9))
        if float(np.abs(step).max(initial=0.0)) < 1e-4:
            break
    return z


def fit_item_prior(model: PartyModel, table: Ratings, part: NDArray[np.int8], *, ranks: bool) -> ItemPrior:
    """Return the prior of a party's new items, from its trained items; `ranks` tells models of lists from those of ratings."""
    vectors = absorb_item_scores(model)
    train = part == TRAIN
    counts = np.bincount(table.item[train], minlength=table.n_items)[: len(vectors)]
    rated = counts > 0
    weights = (rated if ranks else counts).astype(np.float64)
    return ItemPrior(
        model.users.numpy(),
        *fit_distribution(vectors, weights if rated.any() else np.ones(len(vectors))),
        1.0 if ranks else measure_variance(model, table, part),
        upper_quarter(table.scale),
        _measure_activity(model, table, train) if ranks else None,
    )


def fit_distribution(vectors: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Return the weighted mean m (C,) of vectors (M, C) and the factor F (C, R) of their covariance."""
    share = weights / weights.sum()
    mean = share @ vectors
    deviations = vectors - mean
    values, basis = np.linalg.eigh((deviations * share[:, None]).T @ deviations)
    kept = values > 1e-9 * max(values.max(initial=0.0), 1e-12)
    return mean, basis[:, kept] * np.sqrt(values[kept])


def absorb_item_scores(model: PartyModel) -> Floats:
    """Return the item vectors (M, C) plus the best linear substitute of the weights between items (EASE)."""
    items = model.items.double().numpy()
    if model.item_scores is None or not items.shape[1]:
        return items
    own = model.item_scores
    users = model.users.double().numpy()
    gram = users.T @ users
    gram[np.diag_indices_from(gram)] += 1e-6 * np.trace(gram) / len(gram) or 1.0  # 0 where EASE is alone
    history = user_items(own, len(users))
    sums = (history.T @ users).T @ own.weights.double().numpy()
    found = items.copy()
    found[own.kept.numpy()] += np.linalg.solve(gram, sums).T
    return found


def user_items(scores: ItemScores, users: int) -> scipy.sparse.csr_matrix:
    """Return the items that each user has (N, k), as EASE stores them."""
    places = scores.history.numpy()
    return scipy.sparse.csr_matrix(
        (np.ones(len(places)), places, scores.pointers.numpy()), shape=(users, len(scores.kept))
    )


def _measure_activity(model: PartyModel, table: Ratings, train: NDArray[np.bool_]) -> tuple[Rows, Floats]:
    """Return the sample of users of `ItemPrior.active`."""
    liked = train & (table.rating >= upper_quarter(table.scale))
    likes = np.bincount(table.user[liked], minlength=table.n_users)
    active = np.flatnonzero(likes)
    every = max(1, -(-len(active) // SAMPLE))
    active = active[::every]
    totals = [
        torch.logsumexp(model.score(block), 1).double().numpy()
        for block in torch.split(torch.from_numpy(active), 512)
    ]
    return active, np.log(every * likes[active]) - np.concatenate(totals)


def measure_variance(model: PartyModel, table: Ratings, part: NDArray[np.int8]) -> float:
    """Return the squared error of a model on the validation part, or on all ratings if that is empty."""
    chosen = part == VALID if (part == VALID).any() else np.ones(len(part), bool)
    if not chosen.any():
        return 1.0
    predicted = model.predict_rows(torch.from_numpy(table.user[chosen]), torch.from_numpy(table.item[chosen]))
    return max(float((predicted - torch.from_numpy(table.rating[chosen])).square().mean()), 1e-6)


# -- new items of a run ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class AddedReport:
    """What was added."""

    items: list[AddedItem]
    """The items as they are stored now."""
    unknown_users: int
    """Number of given ratings that were left out, because their users were not in training."""


class NewItems:
    """One party's new items: it estimates their vectors and keeps them in the run folder."""

    def __init__(self, folder: Path, run: Run, party: str | None) -> None:
        """`run` is the run in `folder` as it was trained, without added items; `party` is needed if it has several."""
        self._number, *others = run.find_parties(party)
        if others:
            names = ", ".join(each.name for each in run.parties)
            raise ConfigError(f"the run has several parties; choose one with party=: {names}")
        self._folder = folder
        self._run = run
        self._file = added_file(folder, safe_names(run.parties)[self._number])

    @property
    def table(self) -> Ratings:
        """The party's ratings in training."""
        return self._run.parties[self._number].ratings

    @cached_property
    def priors(self) -> dict[str, ItemPrior]:
        """The prior of each model of the party, by its folder in the run folder."""
        p = self._number
        return {
            name: fit_item_prior(models[p], self.table, self._run.parts[p], ranks=run.config.ranks)
            for name, (run, models) in self._run.all_models.items()
        }

    def add(self, items: Mapping[str, AddedItem]) -> AddedReport:
        """Add items, or add ratings to items that were added before, and store their new vectors.

        Ratings of users who were not in training are left out. Vectors of `items` are ignored.
        """
        self._check(items)
        with lock_added(self._folder):
            if self._file.is_file() and self._file.stat().st_size > LARGEST_ADDED:
                where = (
                    f"{self._run.parties[self._number].name} has {LARGEST_ADDED / 1e6:.0f} MB of added items"
                )
                raise DataError(f"{where}; train again, with the new items in the data")
            before = read_added(self._file)
            gone = ForgottenUsers.read(self._folder / FORGOTTEN)  # also since the run was loaded
            rows = self._find_users(items.values())
            ids = np.array([user for user, row in rows.items() if user and row >= 0], np.str_)
            here = set(ids[~gone.find(ids)].tolist())
            merged = {name: _merge(item, before.get(name), here) for name, item in items.items()}
            for item in merged.values():
                check_item(item)
            stored = self.estimate_all(merged.values(), before.values())
            rewrite_added(self._file, (before | dict(zip(merged, stored, strict=True))).values())
        unknown = sum(len(item.ratings.keys() - merged[name].ratings.keys()) for name, item in items.items())
        return AddedReport(stored, unknown)

    def _find_users(self, items: Collection[AddedItem]) -> dict[str, int]:
        """Return the row of each user who rated an item, -1 for those who were not in training. One search is for all of them."""
        ids = list(dict.fromkeys(user for item in items for user in item.ratings))
        found = find_positions(np.array(ids, np.str_), self.table.user_ids)
        return dict(zip(ids, found.tolist(), strict=True))

    def estimate_all(self, items: Collection[AddedItem], others: Iterable[AddedItem] = ()) -> list[AddedItem]:
        """Return items with the vectors that follow from their ratings.

        The newest time of these, of `others` and of the training counts as now.
        """
        newest = None
        if self.table.time is not None and len(self.table.time):
            given = [at for item in (*items, *others) for _, at in item.ratings.values() if at is not None]
            newest = max([int(self.table.time.max()), *given])
        estimated, found = [], self._find_users(items)
        for item in items:
            rows = np.array([found[user] for user in item.ratings], np.int64)
            values = np.array([rating for rating, _ in item.ratings.values()], np.float32)
            exposure = self._exposure([at for _, at in item.ratings.values()], newest)
            vectors = {
                name: prior.estimate(rows, values, exposure=exposure).tolist()
                for name, prior in self.priors.items()
            }
            estimated.append(replace(item, vectors=vectors))
        return estimated

    def _exposure(self, times: Sequence[int | None], now: int | None) -> float | None:
        """Return the time since an item's first rating as a share of the training period; None if it is unknown."""
        known = [at for at in times if at is not None]
        if now is None or self.table.time is None or not times or len(known) < len(times):
            return None
        period = int(self.table.time.max() - self.table.time.min())
        return (now - min(known)) / period if period else None

    def _check(self, items: Mapping[str, AddedItem]) -> None:
        trained = find_positions(np.array(list(items), dtype=np.str_), self.table.item_ids) >= 0
        if trained.any():
            first = list(items)[int(trained.argmax())]
            raise DataError(
                f"item '{first}' was in training; leave it out: its new ratings take part in the next training"
            )
        low, high = self.table.scale
        latest = latest_plausible_time()  # the newest time counts as now: one from the future would age all
        for item in items.values():
            for rating, at in item.ratings.values():
                if not low <= rating <= high:
                    raise DataError(
                        f"item '{item.item}' has the rating {rating:g}, outside the scale {low:g} to {high:g}; correct it"
                    )
                if at is not None and not 0 <= at <= latest:
                    raise DataError(
                        f"item '{item.item}' has a rating at the time {at:.3g}; give seconds since 1970, up to now"
                    )


def _merge(item: AddedItem, before: AddedItem | None, users: Collection[str]) -> AddedItem:
    """Return an item with what was known of it before, and with the ratings of `users` only."""
    known = AddedItem(item.item) if before is None else before
    return AddedItem(
        item.item,
        item.title or known.title,
        {**known.columns, **item.columns},
        {**known.ratings, **{user: given for user, given in item.ratings.items() if user in users}},
    )


def add_items(
    run: str | Path,
    *,
    party: str | None = None,
    ratings: Any = None,
    items: str | Path | None = None,
    **options: Any,
) -> AddedReport:
    """Give new items a vector from their first ratings, so that they are recommended before the next training.

    It takes milliseconds an item and sends nothing to anybody. Call it again with further ratings of the same items. A server that
    serves the run notices the items within seconds.

    Args:
        run: The run folder.
        party: The party that offers the items; needed if the run has several.
        ratings: First ratings of the items: a file or a table, as for `read_ratings`.
        items: A file with a row per item: its id, title and further columns.
        **options: Options of `read_ratings` for the ratings.
    """
    if ratings is None and items is None:
        raise ConfigError("nothing to add; give ratings, items or both")
    folder = Path(run).resolve()  # a link may be switched meanwhile
    new = NewItems(folder, Run.load(folder, added=False), party)
    table = None if ratings is None else read_table(ratings, **options)
    described = {} if items is None else read_item_texts(Path(items))
    return new.add(make_items(table, described))


def make_items(ratings: Ratings | None, described: Mapping[str, Mapping[str, str]]) -> dict[str, AddedItem]:
    """Return the items of a table of ratings, of texts by item and column, or of both."""
    columns: dict[str, dict[str, str]] = defaultdict(dict)
    given: dict[str, dict[str, tuple[float, int | None]]] = defaultdict(dict)
    if ratings is not None:
        texts = dict(ratings.columns) | ({} if ratings.titles is None else {"title": ratings.titles})
        for place, name in enumerate(ratings.item_ids.tolist()):
            columns[name] = {column: str(values[place]) for column, values in texts.items()}
        users, items = ratings.user_ids[ratings.user].tolist(), ratings.item_ids[ratings.item].tolist()
        times = [None] * len(ratings) if ratings.time is None else ratings.time.tolist()
        for user, name, rating, time in zip(users, items, ratings.rating.tolist(), times, strict=True):
            given[name][user] = (rating, time)
    for name, more in described.items():
        columns[name] |= more
    return {
        name: AddedItem(name, texts.pop("title", ""), texts, given.get(name, {}))
        for name, texts in columns.items()
    }
