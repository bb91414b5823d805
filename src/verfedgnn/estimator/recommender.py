"""`VerFedRecommender`: a federation as one estimator in the style of scikit-learn, for quick experiments."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verfedgnn.config import Config, presets
from verfedgnn.core.errors import ConfigError, DataError, RunError
from verfedgnn.data import PartyData, check_parties, read_parties
from verfedgnn.data.parties import one_table, sources_of
from verfedgnn.estimator.functions import Lift, lift, train
from verfedgnn.estimator.rated_pairs import read_pairs
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

        For an experiment with one catalogue, `parties` or `by` divide its items. A table is a path, `Ratings`, an Arrow table, a data frame (pandas, polars, ...) or a tuple (users, items, ratings).
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
            if pairs.parties is None and parties is None:
                raise one_table()
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
