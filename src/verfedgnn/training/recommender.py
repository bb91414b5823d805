"""`VerFedRecommender`: a federation as one estimator, for a quick experiment in the manner of scikit-learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from verfedgnn.config import Config
from verfedgnn.core.errors import ConfigError, RunError
from verfedgnn.core.user_rule import UserRule
from verfedgnn.data import PartyData, check_parties, read_parties, split_items
from verfedgnn.data.data_frames import as_ratings
from verfedgnn.data.parties import parties_from_tables
from verfedgnn.runs.run import Recommendation, Run
from verfedgnn.training.progress import Watcher
from verfedgnn.training.train import train


class VerFedRecommender:
    """Parties in, recommendations out; every organisation's part is played on this machine.

    `settings` are those of `Config.preset`, by name: `VerFedRecommender(epochs=100, dim=16)`. As scikit-learn asks, a
    constructor only keeps its parameters (they are checked by `fit`), what `fit` finds out ends in an underscore, and
    `sklearn.base.clone` works; scikit-learn itself is not needed.

    After `fit`: `run_` (the `Run`), `metrics_` (its figures), `config_` and `parties_`, the parties' names.
    """

    run_: Run
    metrics_: dict[str, Any]
    config_: Config
    parties_: list[str]

    def __init__(
        self, preset: str = "best", model: str = "gcn", seed: int = 0, *, device: str = "cpu", **settings: Any
    ) -> None:
        self.preset, self.model, self.seed, self.device = preset, model, seed, device
        self.settings = settings

    def fit(
        self,
        data: Any,
        *,
        parties: int | None = None,
        by: str | None = None,
        out: str | Path | None = None,
        watch: Watcher | None = None,
    ) -> VerFedRecommender:
        """Train on one table per party, `{"film": ..., "books": ...}`, or on one that is cut into `parties` or `by` a column.

        A table is a path, `Ratings`, an Arrow table, a data frame (pandas, polars, ...) or a tuple (users, items, ratings).
        Parties that are made already, as by `split_items`, are taken as they are. With `out` the run is kept in a folder.
        """
        config = Config.preset(self.preset, model=self.model, **{"seed": self.seed, **self.settings})
        members = _members(data, parties, by, config.seed, config.users)
        run = train(members, config, out=out, device=self.device, watch=watch)
        self.run_, self.metrics_, self.config_ = run, run.metrics, config
        self.parties_ = [party.name for party in run.parties]
        return self

    def predict(self, users: Any, items: Any, party: str | None = None) -> NDArray[np.float64]:
        """The predicted rating of each pair of ids."""
        return self._fitted().predict(users, items, party=party)

    @overload
    def recommend(self, user: str | int, k: int = 10, party: str | None = None) -> list[Recommendation]: ...

    @overload
    def recommend(
        self, user: Sequence[Any], k: int = 10, party: str | None = None
    ) -> list[list[Recommendation]]: ...

    def recommend(self, user: Any, k: int = 10, party: str | None = None) -> Any:
        """The k best items a user has not rated, of all parties or one; for several users, a list for each."""
        run = self._fitted()
        if isinstance(user, str) or np.ndim(user) == 0:
            return run.recommend(str(user), k, party=party)
        return [run.recommend(str(each), k, party=party) for each in user]

    def score(self, ratings: Any = None) -> float:
        """Minus the RMSE of the test part, or of `ratings` given as to `fit`; of a ranking, NDCG@20 of the test part."""
        run = self._fitted()
        ranks = run.config.training.ranks
        if ratings is None:
            judged = run.metrics["test"]["ndcg@20" if ranks else "rmse"]
            if judged is None:
                raise RunError("this run has no test part to be judged on; give score the ratings")
            return float(judged if ranks else -judged)
        if ranks:
            raise ConfigError(
                "a ranking predicts no ratings that could be compared; call score() for its NDCG@20"
            )
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
        """The constructor's parameters, settings among them; `deep` is scikit-learn's and changes nothing."""
        return {
            "preset": self.preset,
            "model": self.model,
            "seed": self.seed,
            "device": self.device,
            **self.settings,
        }

    def set_params(self, **params: Any) -> VerFedRecommender:
        """Other parameters, for the next `fit`."""
        for name, value in params.items():
            if name in ("preset", "model", "seed", "device"):
                setattr(self, name, value)
            else:
                self.settings = {**self.settings, name: value}
        return self

    def __repr__(self) -> str:
        return f"VerFedRecommender({', '.join(f'{name}={value!r}' for name, value in self.get_params().items())})"


def _members(data: Any, parties: int | None, by: str | None, seed: int, users: UserRule) -> list[PartyData]:
    """What `fit` is given, as checked parties."""
    made = isinstance(data, Sequence) and len(data) > 0 and all(isinstance(each, PartyData) for each in data)
    if (made or isinstance(data, Mapping)) and (parties is not None or by is not None):
        raise ConfigError("parties and by cut one table; leave them out where every party has its own")
    if isinstance(data, str | Path):
        return read_parties(data, parties=parties, seed=seed, by=by, users=users)
    if isinstance(data, Mapping):
        tables = {str(name): as_ratings(source, name=str(name)) for name, source in data.items()}
        found = parties_from_tables([replace(table, name=name) for name, table in tables.items()], users)
    elif made:
        found = list(data)
    else:
        found = split_items(as_ratings(data, keep=() if by is None else (by,)), parties, seed=seed, by=by)
    check_parties(found)
    return found
