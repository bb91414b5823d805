"""`VerFedRecommender`: a federation as one estimator."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from verfedgnn.config import Config, presets
from verfedgnn.core.errors import ConfigError, DataError, RunError
from verfedgnn.data import PartyData, check_parties, read_parties
from verfedgnn.data.parties import one_table, sources_of
from verfedgnn.estimator.functions import Lift, lift, train
from verfedgnn.runs.prepared_data import choose_config
from verfedgnn.runs.run import Recommendation, Run
from verfedgnn.training.progress import Watcher


class VerFedRecommender:
    """A recommender that trains all parties of a federation on this machine.

    `settings` are those of `Config.preset`, by name: `VerFedRecommender(epochs=100, dim=16)`; `fit` checks them.
    Terminals and notebooks show the progress of `fit`, unless `verbose` is False.

    After `fit`, `run_` is the finished training, `metrics_` the content of its metrics.json, `config_` the configuration that the
    parties trained with, and `parties_` their names.
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
        self.settings = settings

    def fit(
        self,
        data: Any,
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

        Args:
            data: The tables.
            parties: Number of parties that one table is split into.
            by: Item column that one table is split by.
            own: Options for single parties, by name: `{"books": {"scale": (0, 10)}}`.
            out: Folder to write the run to.
            watch: Function that is called after each round with a `Progress`: label, round, rounds, valid, best and bytes.
            **options: Options of `read_ratings` for all tables: columns, missing, duplicates, events, scale, catalogue.
                `columns={"user": "uid", "item": "isbn", "party": "shop"}` names the columns.
        """
        config = Config.preset(self.preset, model=self.model, seed=self.seed, **self.settings)
        members = _read_members(data, config, parties=parties, by=by, own=own, **options)
        return self._keep(
            train(members, config, out=out, device=self.device, watch=watch, verbose=self.verbose)
        )

    def _keep(self, run: Run) -> VerFedRecommender:
        self.run_ = run
        self.metrics_ = run.metrics
        self.config_ = run.config
        self.parties_ = [party.name for party in run.parties]
        return self

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
        return cls(preset, config.model.gnn, config.seed, **settings)._keep(run)

    def predict(self, users: Any, items: Any, *, party: str | None = None) -> NDArray[Any]:
        """Predict the rating of each pair of user and item ids, see `Run.predict`."""
        return self._fitted().predict(users, items, party=party)

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

    def score(self) -> float:
        """Return minus the RMSE of the test part or, for a ranking, NDCG@20: higher is better."""
        run = self._fitted()
        judged = run.metrics["test"]["ndcg@20" if run.config.ranks else "rmse"]
        if judged is None:
            raise RunError("this run has no test part, so there is no score")
        return float(judged if run.config.ranks else -judged)

    def _fitted(self) -> Run:
        if not hasattr(self, "run_"):
            raise RunError("this recommender is not trained yet; call fit with the parties' ratings first")
        return self.run_

    def _repr_html_(self) -> str:
        """Show the parameters and, after `fit`, the run in a notebook."""
        run = self.run_._repr_html_() if hasattr(self, "run_") else ""
        return f"<p><code>{escape(repr(self))}</code></p>{run}"

    def __repr__(self) -> str:
        names = ("preset", "model", "seed", "device", "verbose")
        given = {name: getattr(self, name) for name in names} | self.settings
        return f"VerFedRecommender({', '.join(f'{name}={value!r}' for name, value in given.items())})"


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
