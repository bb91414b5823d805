"""`VerFedRecommender`: a federation as one estimator in the style of scikit-learn, for quick experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from verfedgnn.config import Config
from verfedgnn.core.errors import ConfigError, RunError
from verfedgnn.data import PartyData, check_parties, read_parties
from verfedgnn.data.data_frames import as_ratings
from verfedgnn.data.event_ratings import EventWeights
from verfedgnn.evaluation.lift import lift
from verfedgnn.runs.run import Recommendation, Run
from verfedgnn.training.progress import Watcher
from verfedgnn.training.train import train


class VerFedRecommender:
    """A recommender that trains all parties of a federation on this machine.

    `settings` are those of `Config.preset`, by name: `VerFedRecommender(epochs=100, dim=16)`. As in scikit-learn, the
    constructor only stores its parameters, `fit` checks them, results end in an underscore, and `sklearn.base.clone` works.
    scikit-learn need not be installed.
    """

    run_: Run
    """The finished training, after `fit`."""
    metrics_: dict[str, Any]
    """The metrics of the run, as in metrics.json; `lift` adds its result."""
    config_: Config
    """The configuration that the parties trained with."""
    parties_: list[str]
    """The names of the parties."""

    def __init__(
        self, preset: str = "best", model: str = "gcn", seed: int = 0, *, device: str = "cpu", **settings: Any
    ) -> None:
        self.preset = preset
        self.model = model
        self.seed = seed
        self.device = device
        self.settings = settings

    def fit(
        self,
        data: Any,
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

        Args:
            data: The tables.
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
        config = Config.preset(self.preset, model=self.model, **{"seed": self.seed, **self.settings})
        options = {
            "columns": columns,
            "missing": missing,
            "duplicates": duplicates,
            "events": events,
            "scale": scale,
            "catalogue": catalogue,
        }
        members = _members(data, config, parties=parties, by=by, own=own, options=options)
        run = train(members, config, out=out, device=self.device, watch=watch)
        self.run_ = run
        self.metrics_ = run.metrics
        self.config_ = run.config
        self.parties_ = [party.name for party in run.parties]
        return self

    def predict(self, users: Any, items: Any, party: str | None = None) -> NDArray[np.float64]:
        """Predict the rating of each pair of user and item ids, within the party's scale."""
        return self._fitted().predict(users, items, party=party)

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
            return run.recommend(str(user), k, party=party)
        return [run.recommend(str(each), k, party=party) for each in user]

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

    def score(self, ratings: Any = None) -> float:
        """Return minus the RMSE of the test part, or of `ratings` given as to `fit`. For a ranking, return NDCG@20."""
        run = self._fitted()
        ranks = run.config.training.ranks
        if ratings is None:
            judged = run.metrics["test"]["ndcg@20" if ranks else "rmse"]
            if judged is None:
                raise RunError("this run has no test part; pass ratings to score")
            return float(judged if ranks else -judged)
        if ranks:
            raise ConfigError("a ranking predicts no ratings to compare with; call score() for its NDCG@20")
        tables = {"ratings": ratings} if not isinstance(ratings, Mapping) else ratings
        squared = []
        for name, source in tables.items():
            table = as_ratings(source, name=name)
            predicted = run.predict(table.user_ids[table.user], table.item_ids[table.item])
            squared.append(np.square(predicted - table.rating))
        return -float(np.sqrt(np.concatenate(squared).mean()))

    def _fitted(self) -> Run:
        if not hasattr(self, "run_"):
            raise RunError("this recommender is not trained yet; call fit with the parties' ratings first")
        return self.run_

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's parameters, including settings; `deep` exists for scikit-learn and changes nothing."""
        return {
            "preset": self.preset,
            "model": self.model,
            "seed": self.seed,
            "device": self.device,
            **self.settings,
        }

    def set_params(self, **params: Any) -> VerFedRecommender:
        """Set parameters for the next `fit`."""
        for name, value in params.items():
            if name in ("preset", "model", "seed", "device"):
                setattr(self, name, value)
            else:
                self.settings = {**self.settings, name: value}
        return self

    def __repr__(self) -> str:
        return f"VerFedRecommender({', '.join(f'{name}={value!r}' for name, value in self.get_params().items())})"


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
