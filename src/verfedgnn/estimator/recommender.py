"""`VerFedRecommender`: a federation as one estimator in the style of scikit-learn, and `RatingSplit` for its folds.

As in scikit-learn, a table of (party, user, item) with one row per rating may stand beside the ratings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verfedgnn.config import Config, presets
from verfedgnn.core.errors import ConfigError, DataError, RunError
from verfedgnn.data import PartyData, check_parties, read_parties
from verfedgnn.data.ids import StrArray, as_text, to_numpy
from verfedgnn.data.parties import one_table, sources_of
from verfedgnn.data.table_sources import match_columns, open_columns
from verfedgnn.estimator.functions import Lift, lift, train
from verfedgnn.runs.prepared_data import choose_config
from verfedgnn.runs.run import Recommendation, Run
from verfedgnn.training.progress import Watcher

OWN_PARAMETERS = ("preset", "model", "seed", "device", "verbose")
"""Parameters of the constructor that are no settings."""


class VerFedRecommender:
    """A recommender that trains all parties of a federation on this machine.

    `settings` are those of `Config.preset`, by name: `VerFedRecommender(epochs=100, dim=16)`. As in scikit-learn, the
    constructor only stores its parameters, `fit` checks them, and results end in an underscore. `sklearn.base.clone`,
    `cross_val_score` and `GridSearchCV` work; use `RatingSplit` for their folds. scikit-learn need not be installed.
    Terminals and notebooks show the progress of `fit`, unless `verbose` is False.

    After `fit`, `run_` is the finished training, `metrics_` the content of its metrics.json, `config_` the configuration that the
    parties trained with, and `parties_` their names. `columns_` has the columns that `fit` was given, by party. After `fit(X, y)`,
    `n_features_in_` and `feature_names_in_` are the number and the names of the columns of `X`.
    """

    def __init__(
        self,
        preset: str = "best",
        model: str = "gcn",
        seed: int = 0,
        *,
        device: str = "cpu",
        verbose: bool = True,
        **settings: Any,
    ) -> None:
        self.preset = preset
        self.model = model
        self.seed = seed
        self.device = device
        self.verbose = verbose
        vars(self).update(settings)

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        parties: int | None = None,
        by: str | None = None,
        own: Mapping[str, Mapping[str, Any]] | None = None,
        out: str | Path | None = None,
        watch: Watcher | None = None,
        **options: Any,
    ) -> VerFedRecommender:
        """Train on one table per party, `{"film": ..., "books": ...}`, or on one table with a column "party".

        For an experiment with one catalogue, `parties` or `by` divide its items. Tables are as in `read_parties`.
        A list of `PartyData`, such as `split_items` returns, is used unchanged.

        With `y`, as in scikit-learn, `X` is a data frame with the columns party, user and item, or an array with these
        columns in this order, and `y` has the rating of each row. Without a party column, items are split into `parties`.
        Repeated pairs are averaged, unless `duplicates` says otherwise.

        Args:
            X: The tables, or the pairs to rate.
            y: The ratings, if `X` has none.
            parties: Number of parties that one table is split into.
            by: Item column that one table is split by.
            own: Options for single parties, by name: `{"books": {"scale": (0, 10)}}`.
            out: Folder to write the run to.
            watch: Function that is called after each round with a `Progress`: label, round, rounds, valid, best and bytes.
            **options: Options of `read_ratings` for all tables: columns, missing, duplicates, events, scale, catalogue.
                `columns={"user": "uid", "item": "isbn", "party": "shop"}` names the columns.
        """
        settings = {name: value for name, value in self.get_params().items() if name not in OWN_PARAMETERS}
        config = Config.preset(self.preset, model=self.model, seed=self.seed, **settings)
        columns = options.get("columns")
        if y is not None:
            if len(getattr(y, "columns", ())) > 1:
                raise DataError(
                    'the second argument of fit is y, the ratings of X; pass several tables by name, {"film": ..., "books": ...}'
                )
            pairs = read_pairs(X, columns)
            self.n_features_in_ = pairs.width
            if pairs.names:
                self.feature_names_in_ = np.array(pairs.names, object)
            X = pairs.tables(y)
            options = {"duplicates": "mean", **options, "columns": None}
        elif isinstance(X, np.ndarray):
            raise DataError(
                "this estimator requires y to be passed, but the target y is None: pass the ratings"
            )
        members = _read_members(X, config, parties=parties, by=by, own=own, **options)
        named = {name: given.get("columns") or {} for name, given in (own or {}).items()}
        self.columns_ = {member.name: (columns or {}) | named.get(member.name, {}) for member in members}
        self._keep(train(members, config, out=out, device=self.device, watch=watch, verbose=self.verbose))
        return self

    def _keep(self, run: Run) -> None:
        self.run_ = run
        self.metrics_ = run.metrics
        self.config_ = run.config
        self.parties_ = [party.name for party in run.parties]

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the trained recommender to a folder, as `verfedgnn train --out` does; `overwrite` replaces an earlier run."""
        self._fitted().save(path, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | Path) -> VerFedRecommender:
        """Read a recommender from the folder of a run, however it was trained."""
        run = Run.load(path)
        config = run.judged.config
        preset = config.base if config.base in presets() else "best"
        base = choose_config(run.parties, Config.preset(preset, model=config.model.gnn)).values()
        own = ("seed", "base", "model.gnn", "model.code")
        settings = {
            name.split(".")[-1]: value
            for name, value in config.values().items()
            if name not in own and base.get(name) != value
        }
        recommender = cls(preset, config.model.gnn, config.seed, **settings)
        recommender._keep(run)
        return recommender

    def predict(
        self, X: Any, items: Any = None, party: str | None = None, *, columns: Mapping[str, str] | None = None
    ) -> NDArray[np.float64]:
        """Predict the rating of each row (party, user, item) of a table, within the party's scale.

        Columns are named as in `fit`, unless `columns` says otherwise. Without a column for the party, `party` names it for
        all rows; it is needed only if several parties use the same item ids. With `items`, `X` has the ids of users, and
        each pair of user and item is predicted.
        """
        run = self._fitted()
        if items is not None:
            return run.predict(X, items, party=party)
        named = getattr(self, "columns_", {}) if columns is None else {}
        tables = [named[party]] if party in named else named.values()
        pairs = read_pairs(X, columns, also=[pair for table in tables for pair in table.items()])
        if pairs.width != getattr(self, "n_features_in_", pairs.width):
            raise DataError(
                f"X has {pairs.width} features, but VerFedRecommender is expecting {self.n_features_in_} features as input"
            )
        predicted = np.empty(len(pairs))
        for name, rows in pairs.by_party().items():
            try:
                predicted[rows] = run.predict(pairs.users[rows], pairs.items[rows], party=name or party)
            except RunError as error:
                if not hasattr(self, "n_features_in_"):
                    raise
                folds = "in cross-validation, pass cv=vf.RatingSplit(5), whose folds train on every user and item they test"
                raise RunError(f"{error}; {folds}") from None
        return predicted

    def recommend(
        self,
        user: Any = None,
        k: int = 10,
        party: str | None = None,
        *,
        ratings: Mapping[Any, Any] | None = None,
    ) -> Any:
        """Return the k best items (`Recommendations`) that a user has not rated, from all parties or from one; for several users, a list each.

        With `ratings`, `{item: stars}`, it recommends to a newcomer, see `Run.recommend`. Its `to_frame` adds a reason to each item.
        """
        return self._fitted().recommend(user, k, party, ratings=ratings)

    def similar(self, item: Any, k: int = 10, party: str | None = None) -> list[Recommendation]:
        """Return the k items of all parties that are most similar to `item`, see `Run.similar`."""
        return self._fitted().similar(item, k, party)

    def evaluate(self, k: int = 20) -> dict[str, Any]:
        """Return the accuracy on the test part, overall and per party: RMSE, MAE, and Recall, NDCG and HitRate of lists of k.

        `popularity` is the quality of lists of the most popular items.
        """
        return self._fitted().evaluate(k)

    def lift(self) -> Lift:
        """Return what joining gains each party, in lists and ratings, for known and for new customers."""
        return lift(self._fitted())

    def report(self, path: str | Path) -> Path:
        """Write the report of the run, see `Run.report`."""
        return self._fitted().report(path)

    def score(self, X: Any = None, y: Any = None) -> float:
        """Return minus the RMSE of the test part, or of the pairs `X` with ratings `y`. For a ranking, return NDCG@20."""
        run = self._fitted()
        ranks = run.config.ranks
        if X is None:
            judged = run.metrics["test"]["ndcg@20" if ranks else "rmse"]
            if judged is None:
                raise RunError("this run has no test part; pass ratings to score")
            return float(judged if ranks else -judged)
        if ranks or y is None:
            problem = (
                "a ranking predicts no ratings to compare with" if ranks else "y is missing, the ratings of X"
            )
            raise ConfigError(f"{problem}; call score() for the accuracy on the test part")
        return -float(np.sqrt(np.square(self.predict(X) - np.asarray(y, np.float64).ravel()).mean()))

    def _fitted(self) -> Run:
        if hasattr(self, "run_"):
            return self.run_
        text = "this recommender is not trained yet; call fit with the parties' ratings first"
        try:
            from sklearn.exceptions import NotFittedError
        except ImportError:
            raise RunError(text) from None
        # scikit-learn recognises its own error
        raise type("NotFittedRunError", (RunError, NotFittedError), {})(text)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's parameters, including settings; `deep` exists for scikit-learn and changes nothing."""
        return {name: value for name, value in vars(self).items() if name == name.strip("_")}

    def set_params(self, **params: Any) -> VerFedRecommender:
        """Set parameters for the next `fit`."""
        vars(self).update(params)
        return self

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's description of the estimator: a regressor of ids, which needs y."""
        from sklearn.utils import InputTags, RegressorTags, Tags, TargetTags

        return Tags(
            estimator_type="regressor",
            target_tags=TargetTags(required=True),
            regressor_tags=RegressorTags(poor_score=True),
            input_tags=InputTags(categorical=True, string=True),
        )

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "run_")

    def _repr_html_(self) -> str:
        """Show the parameters and, after `fit`, the run in a notebook."""
        run = self.run_._repr_html_() if hasattr(self, "run_") else ""
        return f"<p><code>{escape(repr(self))}</code></p>{run}"

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.get_params().items())
        return f"VerFedRecommender({given})"


def _read_members(data: Any, config: Config, **options: Any) -> list[PartyData]:
    """Return the data given to `fit` as checked parties; `options` are those of `read_parties`."""
    given = {name: value for name, value in options.items() if value is not None}
    if isinstance(data, list) and data and all(isinstance(party, PartyData) for party in data):
        if given:
            raise ConfigError(
                f"{', '.join(given)}: options of tables; leave them out, these are parties already"
            )
        check_parties(data)
        members = data
    else:
        if isinstance(data, str | Path) and not {"parties", "by"} & given.keys() and sources_of(data)[1]:
            raise one_table()
        members = read_parties(data, seed=config.seed, users=config.users, **given)
    if len(members) < 2:
        raise DataError(
            f"'{members[0].name}' is the only party, and joining needs at least two: pass one table per party, "
            '{"film": ..., "books": ...}. To divide one catalogue for an experiment, pass the table itself with parties=3'
        )
    return members


# -- tables of (party, user, item) ---------------------------------------------------------------------------

ORDER = ("party", "user", "item")
"""Columns of an array; one with two columns has no party."""


@dataclass(frozen=True, eq=False)
class RatedPairs:
    """The users and items of a table, as text, and the party of each row if the table names it."""

    users: StrArray
    items: StrArray
    parties: StrArray | None
    width: int
    """Number of columns of the table."""
    names: tuple[str, ...]
    """Names of the columns; empty for an array."""

    def __len__(self) -> int:
        return len(self.users)

    def by_party(self) -> dict[str | None, NDArray[np.int64]]:
        """Return the rows of each party, under None if the table names no parties."""
        if self.parties is None:
            return {None: np.arange(len(self))}
        return {str(name): np.flatnonzero(self.parties == name) for name in np.unique(self.parties)}

    def tables(self, y: Any) -> Any:
        """Return these pairs with their ratings as `read_parties` takes them: one table per party, or one table."""
        ratings = np.asarray(y)
        if ratings.ndim == 2 and ratings.shape[1] == 1:
            ratings = ratings[:, 0]
        if np.iscomplexobj(ratings):
            raise DataError("y is complex. Complex data not supported; give real numbers")
        if ratings.shape != (len(self),):
            raise DataError(
                f"X has {len(self):,} rows and y has shape {ratings.shape}; give one rating per row, or name the tables: "
                'fit({"film": ..., "books": ...})'
            )
        if self.parties is None:
            return self.users, self.items, ratings
        rows = self.by_party().items()
        return {name: (self.users[index], self.items[index], ratings[index]) for name, index in rows}


def read_pairs(
    table: Any, columns: Mapping[str, str] | None = None, *, also: Sequence[tuple[str, str]] = ()
) -> RatedPairs:
    """Read a data frame with columns for user, item and optionally party, or an array of (party, user, item).

    `also` has further names of columns by role; those that the table does not have are ignored.
    """
    if hasattr(table, "__arrow_c_stream__") or hasattr(table, "collect"):
        there, column = open_columns(table, "X", ORDER)
        wanted = {role: name for role, name in reversed(also) if role in ORDER and name in there}
        wanted |= {role: name for role, name in (columns or {}).items() if role in ORDER}
        required = ("party", "user", "item") if "party" in wanted else ("user", "item")
        names = match_columns(there, wanted, required=required, keep=("party",), source="X")
        found = {role: column(name) for role, name in names.items() if role in ORDER}
        width = len(there)
    else:
        array = _as_array(table)
        there = []
        width = array.shape[1]
        found = {role: array[:, k].tolist() for k, role in enumerate(ORDER[-width:])}
    ids = {role: _as_ids(values, role) for role, values in found.items()}
    return RatedPairs(ids["user"], ids["item"], ids.get("party"), width, tuple(there))


def _as_array(table: Any) -> NDArray[Any]:
    if hasattr(table, "toarray"):
        raise DataError("X is a sparse matrix; give one row (party, user, item) per rating")
    array = np.asarray(table, None if hasattr(table, "dtype") else object)
    if np.iscomplexobj(array):
        raise DataError("X is complex. Complex data not supported; give ids")
    if array.ndim == 2 and (array.shape[1] < 2 or not len(array)):
        lack, least = (f"{array.shape[1]} feature(s)", 2) if len(array) else ("0 sample(s)", 1)
        raise DataError(f"X has {lack} (shape={array.shape}) while a minimum of {least} is required.")
    if array.ndim != 2 or array.shape[1] > 3:
        raise DataError(
            f"X has shape {array.shape}; give one row (party, user, item) or (user, item) per rating. Reshape your data"
        )
    return array


def _as_ids(values: Any, role: str) -> StrArray:
    ids = to_numpy(as_text(values, role))
    if (ids == "").any():
        row = int(np.argmax(ids == ""))
        raise DataError(
            f"X has no {role} in row {row} (counted from 0), but None or NaN; fill it in or leave the row out"
        )
    return ids


class RatingSplit:
    """Folds of ratings in which every tested user and every tested item also has ratings to train on.

    Ratings go to `n_splits` folds at random. A rating whose user or item has no other rating outside the fold is
    always trained on, because a recommender has no vector for a user or an item that it has never seen.
    """

    def __init__(self, n_splits: int = 5, *, seed: int = 0) -> None:
        self.n_splits = n_splits
        self.seed = seed

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        """Return the number of folds."""
        return self.n_splits

    def split(
        self, X: Any, y: Any = None, groups: Any = None
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Yield the rows to train on and the rows to test of each fold; `X` has the columns party, user and item."""
        pairs = read_pairs(X)
        if not 2 <= self.n_splits <= len(pairs):
            raise ConfigError(
                f"n_splits = {self.n_splits} is not between 2 and {len(pairs)}, the number of ratings"
            )
        owner = np.full(len(pairs), "") if pairs.parties is None else pairs.parties
        _, user = np.unique(pairs.users, return_inverse=True)
        _, item = np.unique(np.stack([owner, pairs.items]), axis=1, return_inverse=True)
        fold = np.random.default_rng(self.seed).permutation(len(pairs)) % self.n_splits
        for k in range(self.n_splits):
            outside = fold != k
            known = [np.bincount(code[outside], minlength=code.max() + 1)[code] > 0 for code in (user, item)]
            tested = ~outside & known[0] & known[1]
            yield np.flatnonzero(~tested), np.flatnonzero(tested)

    def __repr__(self) -> str:
        return f"RatingSplit(n_splits={self.n_splits}, seed={self.seed})"
