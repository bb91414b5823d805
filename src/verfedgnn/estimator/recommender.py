"""`VerFedRecommender`: a federation as one estimator in the style of scikit-learn, for quick experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from verfedgnn.config import Config
from verfedgnn.core.errors import ConfigError, DataError, RunError
from verfedgnn.data import PartyData, check_parties, read_parties
from verfedgnn.data.data_frames import as_ratings
from verfedgnn.data.event_ratings import EventWeights
from verfedgnn.data.ids import id_text
from verfedgnn.estimator.rated_pairs import RatedPairs, read_pairs
from verfedgnn.evaluation.lift import lift
from verfedgnn.reports.run_summary import run_html
from verfedgnn.runs.run import Recommendation, Run
from verfedgnn.serving.catalogue import Catalogue
from verfedgnn.serving.explain import find_similar
from verfedgnn.training.progress import Watcher
from verfedgnn.training.train import train


class VerFedRecommender:
    """A recommender that trains all parties of a federation on this machine.

    `settings` are those of `Config.preset`, by name: `VerFedRecommender(epochs=100, dim=16)`. As in scikit-learn, the
    constructor only stores its parameters, `fit` checks them, and results end in an underscore. `sklearn.base.clone`,
    `cross_val_score` and `GridSearchCV` work; use `RatingSplit` for their folds. scikit-learn need not be installed.
    """

    run_: Run
    """The finished training, after `fit`."""
    metrics_: dict[str, Any]
    """The metrics of the run, as in metrics.json; `lift` adds its result."""
    config_: Config
    """The configuration that the parties trained with."""
    parties_: list[str]
    """The names of the parties."""
    n_features_in_: int
    """The number of columns of `X`, after `fit(X, y)`."""
    feature_names_in_: NDArray[Any]
    """The names of the columns of `X`, after `fit(X, y)` with a data frame."""

    def __init__(
        self, preset: str = "best", model: str = "gcn", seed: int = 0, *, device: str = "cpu", **settings: Any
    ) -> None:
        self.preset = preset
        self.model = model
        self.seed = seed
        self.device = device
        vars(self).update(settings)

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        parties: int | None = None,
        by: str | None = None,
        columns: Mapping[str, str] | None = None,
        missing: str | None = None,
        duplicates: str | None = None,
        events: EventWeights | None = None,
        scale: tuple[float, float] | None = None,
        catalogue: int | None = None,
        own: Mapping[str, Mapping[str, Any]] | None = None,
        out: str | Path | None = None,
        watch: Watcher | None = None,
    ) -> VerFedRecommender:
        """Train on one table per party, `{"film": ..., "books": ...}`, or on one table split into `parties` or `by` a column.

        A table is a path, `Ratings`, an Arrow table, a data frame (pandas, polars, ...) or a tuple (users, items, ratings).
        A list of `PartyData`, such as `split_items` returns, is used unchanged.

        With `y`, as in scikit-learn, `X` is a data frame with the columns party, user and item, or an array with these
        columns in this order, and `y` has the rating of each row. Without a party column, items are split into `parties`.
        Repeated pairs are averaged, unless `duplicates` says otherwise.

        Args:
            X: The tables, or the pairs to rate.
            y: The ratings, if `X` has none.
            parties: Number of parties that one table is split into.
            by: Item column that one table is split by.
            columns: Names of the columns: `{"user": "uid", "item": "isbn"}`.
            missing: How to treat rows without a user, an item or a rating: "error" or "drop".
            duplicates: How to treat repeated (user, item) pairs: "error", "first", "last" or "mean".
            events: Weights of events (`{"view": 1, "purchase": 5}`, or one number), if rows are events and not ratings.
            scale: Lowest and highest rating.
            catalogue: Declared number of items of each table, with or without ratings.
            own: Options for single parties, by name: `{"books": {"scale": (0, 10)}}`.
            out: Folder to write the run to.
            watch: Function that is called after each round.
        """
        config = Config.preset(self.preset, model=self.model, **{"seed": self.seed, **self._settings()})
        options = {
            "columns": columns,
            "missing": missing,
            "duplicates": duplicates,
            "events": events,
            "scale": scale,
            "catalogue": catalogue,
        }
        if y is not None:
            X = self._read_pairs(X, columns, fitting=True).tables(y)
            options |= {"columns": None, "duplicates": duplicates or "mean"}
        elif isinstance(X, np.ndarray):
            raise DataError(
                "this estimator requires y to be passed, but the target y is None: pass the ratings"
            )
        members = _members(X, config, parties=parties, by=by, own=own, options=options)
        run = train(members, config, out=out, device=self.device, watch=watch)
        vars(self).pop("catalogue_", None)
        self.run_ = run
        self.metrics_ = run.metrics
        self.config_ = run.config
        self.parties_ = [party.name for party in run.parties]
        return self

    def predict(self, X: Any, items: Any = None, party: str | None = None) -> NDArray[np.float64]:
        """Predict the rating of each row (party, user, item) of a table, within the party's scale.

        With `items`, `X` has the ids of users, and each pair of user and item is predicted.
        """
        run = self._fitted()
        if items is not None:
            return run.predict(X, items, party=party)
        pairs = self._read_pairs(X)
        predicted = np.empty(len(pairs))
        for name, rows in pairs.by_party().items():
            predicted[rows] = run.predict(pairs.users[rows], pairs.items[rows], party=name or party)
        return predicted

    @overload
    def recommend(self, user: str | int, k: int = 10, party: str | None = None) -> list[Recommendation]: ...

    @overload
    def recommend(
        self, user: Sequence[Any], k: int = 10, party: str | None = None
    ) -> list[list[Recommendation]]: ...

    def recommend(self, user: Any, k: int = 10, party: str | None = None) -> Any:
        """Return the k best items that a user has not rated, from all parties or from one; for several users, a list each.

        Each recommendation has the `score` that orders the list and the predicted `rating` in stars.
        """
        run = self._fitted()
        if isinstance(user, str) or np.ndim(user) == 0:
            return run.recommend(id_text(user, "user") or "", k, party=party)
        return [run.recommend(id_text(each, "user") or "", k, party=party) for each in user]

    def similar(self, item: Any, k: int = 10, party: str | None = None) -> list[Recommendation]:
        """Return the k items of all parties that are most similar to `item`: users who like one like the other.

        `score` is the cosine of the items' directions in taste space. `party` names the party of `item` if several parties
        have that id.
        """
        if not hasattr(self, "catalogue_"):
            self.catalogue_ = Catalogue(self._fitted(), "run")
        parties = self.catalogue_.parties
        wanted = id_text(item, "item") or ""
        places = [
            (p, row)
            for p, each in enumerate(parties)
            if party in (None, each.name)
            for row in np.flatnonzero(each.table.item_ids == wanted).tolist()
        ]
        if len(places) != 1:
            found = "is an id of several parties; name one with `party`" if places else "is in no catalogue"
            raise RunError(f"item '{wanted}' {found}; known items look like '{parties[0].table.item_ids[0]}'")
        rows = find_similar(self.catalogue_, *places[0], range(len(parties)), k)
        return [Recommendation(row["item"], row["title"], row["party"], row["similarity"]) for row in rows]

    def evaluate(self, k: int = 20) -> dict[str, Any]:
        """Return the accuracy on the test part, overall and per party: RMSE, MAE, and Recall, NDCG and HitRate of lists of k.

        `popularity` is the quality of lists of the most popular items.
        """
        return self._fitted().evaluate(k)

    def lift(self, watch: Watcher | None = None) -> dict[str, Any]:
        """Return what joining gains each party, with a `summary` in words, and add it to `metrics_`.

        It covers ratings and lists, known customers and newcomers. It runs further trainings.
        """
        run = self._fitted()
        if "lift" not in run.metrics:
            run.metrics["lift"] = lift(run, watch=watch)
        found: dict[str, Any] = run.metrics["lift"]
        return found

    def score(self, X: Any = None, y: Any = None) -> float:
        """Return minus the RMSE of the test part, or of tables given as to `fit`. For a ranking, return NDCG@20."""
        run = self._fitted()
        ranks = run.config.training.ranks
        if X is None:
            judged = run.metrics["test"]["ndcg@20" if ranks else "rmse"]
            if judged is None:
                raise RunError("this run has no test part; pass ratings to score")
            return float(judged if ranks else -judged)
        if ranks:
            raise ConfigError("a ranking predicts no ratings to compare with; call score() for its NDCG@20")
        if y is not None:
            return -float(np.sqrt(np.square(self.predict(X) - np.asarray(y, np.float64).ravel()).mean()))
        tables = X if isinstance(X, Mapping) else {"ratings": X}
        squared = []
        for name, source in tables.items():
            table = as_ratings(source, name=name)
            predicted = run.predict(table.user_ids[table.user], table.item_ids[table.item])
            squared.append(np.square(predicted - table.rating))
        return -float(np.sqrt(np.concatenate(squared).mean()))

    def _fitted(self) -> Run:
        if not hasattr(self, "run_"):
            raise _not_fitted()
        return self.run_

    def _read_pairs(
        self, X: Any, columns: Mapping[str, str] | None = None, *, fitting: bool = False
    ) -> RatedPairs:
        """Read a table of pairs; `fit` remembers its columns, and other methods compare theirs."""
        pairs = read_pairs(X, columns)
        if fitting:
            self.n_features_in_ = pairs.width
            if pairs.names:
                self.feature_names_in_ = np.array(pairs.names, object)
        elif pairs.width != getattr(self, "n_features_in_", pairs.width):
            raise DataError(
                f"X has {pairs.width} features, but VerFedRecommender is expecting {self.n_features_in_} features as input"
            )
        return pairs

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's parameters, including settings; `deep` exists for scikit-learn and changes nothing."""
        return {
            name: value
            for name, value in vars(self).items()
            if not name.startswith("_") and not name.endswith("_")
        }

    def _settings(self) -> dict[str, Any]:
        own = ("preset", "model", "seed", "device")
        return {name: value for name, value in self.get_params().items() if name not in own}

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
        made = f"<p><code>{escape(repr(self))}</code></p>"
        return made + (run_html(self.run_) if hasattr(self, "run_") else "")

    def __repr__(self) -> str:
        return f"VerFedRecommender({', '.join(f'{name}={value!r}' for name, value in self.get_params().items())})"


def _not_fitted() -> RunError:
    """Return the error of an estimator without a run, which scikit-learn recognises if it is installed."""
    text = "this recommender is not trained yet; call fit with the parties' ratings first"
    try:
        from sklearn.exceptions import NotFittedError
    except ImportError:
        return RunError(text)
    return type("NotFittedRunError", (RunError, NotFittedError), {})(text)  # type: ignore[no-any-return]


def _members(
    data: Any,
    config: Config,
    *,
    parties: int | None,
    by: str | None,
    own: Mapping[str, Mapping[str, Any]] | None,
    options: Mapping[str, Any],
) -> list[PartyData]:
    """Return the data given to `fit` as checked parties."""
    given = {name: value for name, value in options.items() if value is not None}
    if not (isinstance(data, list) and data and all(isinstance(each, PartyData) for each in data)):
        return read_parties(
            data, parties=parties, seed=config.seed, by=by, users=config.users, own=own, **given
        )
    unused = [*given, *(name for name, value in {"parties": parties, "by": by, "own": own}.items() if value)]
    if unused:
        raise ConfigError(
            f"{', '.join(unused)}: options of tables; leave them out, these are parties already"
        )
    check_parties(data)
    return data
