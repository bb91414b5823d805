"""A run: the result of a training, in memory or as a folder.

    RUN/config.toml  metrics.json  history.jsonl  ledger.json  parties/  model/  checkpoint/

The folder holds everything that later commands need, including the training data.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn import plugins
from verfedgnn.config import Config, load_config
from verfedgnn.core.array_files import ArrayFile, write_arrays
from verfedgnn.core.errors import PluginWarning, RunError, RunWarning
from verfedgnn.core.files import check_links, lock_folder, make_folder, parsing, write_bytes, writing
from verfedgnn.core.installed import make_frame
from verfedgnn.core.option_names import option, resume_words, worded
from verfedgnn.data import TRAIN, PartyData
from verfedgnn.data.ids import StrArray, as_text, find_positions, id_text, spell, to_numpy
from verfedgnn.data.ratings import format_count
from verfedgnn.runs.added_items import AddedItem, added_file, extend_model, extend_party, read_added
from verfedgnn.runs.ledger import Ledger
from verfedgnn.runs.metrics_file import evaluate
from verfedgnn.runs.party_model import Embeddings, PartyModel, read_model, write_model
from verfedgnn.runs.party_tables import read_party_tables, safe_names, write_party_tables
from verfedgnn.runs.prepared_data import Prepared, prepare
from verfedgnn.runs.run_folder import FINAL, FORGOTTEN, LISTS, empty_run, holds_run

if TYPE_CHECKING:
    from verfedgnn.serving.run_answers import RunAnswers


MOSTLY_NEW = 0.5
"""Share of a party's items that are new since the run before, from which on its file may be a wrong one."""
COSTS = ("rounds", "seconds", "bytes", "privacy", "public")
"""What metrics.json has of every training of a run."""


@dataclass(frozen=True)
class Recommendation:
    """One recommended item."""

    item: str
    title: str
    party: str
    score: float
    """The number that orders the list, which adds up to 1 over all unrated items; the predicted rating without lists."""
    rating: float | None = None
    """The predicted rating, within the party's scale; None if the run predicts no ratings."""


class Recommendations(list[Recommendation]):
    """The best items of one user, best first."""

    def __init__(self, items: Iterable[Recommendation], explain: Callable[[], list[str]]) -> None:
        """Hold `items`; `explain` returns a reason for each of them, and is called when reasons are asked for."""
        super().__init__(items)
        self._explain = explain

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)  # reasons need the run

    @cached_property
    def reasons(self) -> list[str]:
        """Why each item is in the list: what the user liked that it follows from, or that others like it."""
        return self._explain() if self else []

    def to_rows(self) -> list[dict[str, Any]]:
        """Return one dictionary per item, with its reason."""
        return [asdict(item) | {"reason": why} for item, why in zip(self, self.reasons, strict=True)]

    def to_frame(self) -> Any:
        """Return the list as a data frame of pandas: item, title, party, score, rating and reason.

        Titles and ratings are left out if no item has one.
        """
        rows = self.to_rows()
        empty = {
            name for name in Recommendation.__annotations__ if all(row[name] in ("", None) for row in rows)
        }
        return make_frame([{name: value for name, value in row.items() if name not in empty} for row in rows])


@dataclass
class Run:
    """The result of a finished training: data, models, metrics, history and ledger."""

    config: Config
    parties: list[PartyData]
    parts: list[NDArray[np.int8]]
    """`TRAIN`, `VALID` or `TEST` for each rating of each party."""
    models: list[PartyModel]
    """The model that each party serves."""
    metrics: dict[str, Any]
    """Content of metrics.json."""
    history: list[dict[str, Any]]
    """Result of each validation, as in history.jsonl."""
    ledger: Ledger
    public: Tensor
    """Public parameters of the best model, flat."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    alone: list[PartyModel] | None = None
    """The model that each party would serve without the federation; None without a gate."""
    lists: Run | None = None
    """The run of the model that orders lists; None if only one model was trained."""
    final_of: Run | None = None
    """The run that was judged, of which this one repeats the choices on all ratings; None if this run was judged itself."""
    folder: Path | None = None
    """Folder of this run or, if it has none, of the run before it; its forgotten users stay out of trainings after this run, too."""

    @property
    def all_models(self) -> dict[str, tuple[Run, list[PartyModel]]]:
        """The models of each party with the run that they belong to, by their folder in the run folder."""
        found = {"model": (self, self.models)}
        if self.alone is not None:
            found["model/alone"] = (self, self.alone)
        lists = {} if self.lists is None else self.lists.all_models
        return found | {f"{LISTS}/{name}": models for name, models in lists.items()}

    def with_added(self, added: Sequence[Mapping[str, AddedItem]]) -> Run:
        """Return the run with items that were added after its training, by party.

        Items that were in training, or lack a vector in one of the models, are left out with a warning.
        """
        usable = []
        for p, items in enumerate(added):
            party = self.parties[p]
            trained = set(party.ratings.item_ids.tolist()) if items else set()
            widths = {name: models[p].items.shape[1] for name, (_, models) in self.all_models.items()}
            chosen = {
                name: item
                for name, item in items.items()
                if name not in trained and all(len(item.vectors.get(m, ())) == w for m, w in widths.items())
            }
            if len(chosen) < len(items):
                left_out = format_count(len(items) - len(chosen), "added item")
                text = f"{left_out} of {party.name} left out: not of this run; add them again"
                warnings.warn(text, RunWarning, stacklevel=3)
            usable.append(chosen)
        return self._extended(usable, "") if any(usable) else self

    def _extended(self, added: Sequence[Mapping[str, AddedItem]], start: str) -> Run:
        """Return this run with added items; `start` is its place in the run folder."""

        def extend(models: Sequence[PartyModel], name: str) -> list[PartyModel]:
            return [
                extend_model(model, [item.vectors[f"{start}{name}"] for item in items.values()])
                for model, items in zip(models, added, strict=True)
            ]

        tables = map(extend_party, self.parties, self.parts, added)
        parties, parts = zip(*tables, strict=True)
        return replace(
            self,
            parties=list(parties),
            parts=list(parts),
            models=extend(self.models, "model"),
            alone=None if self.alone is None else extend(self.alone, "model/alone"),
            lists=None if self.lists is None else self.lists._extended(added, f"{LISTS}/"),
        )

    def __repr__(self) -> str:
        test = self.metrics.get("test", {})
        name = "ndcg@20" if self.config.ranks else "rmse"
        judged = "" if test.get(name) is None else f", test {name} {test[name]:.3f}"
        return f"<Run of {', '.join(party.name for party in self.parties)}: {self.metrics.get('rounds')} rounds{judged}>"

    @property
    def spellings(self) -> list[str]:
        """The ways in which the parties' user ids were spelled alike when they were read."""
        return sorted({party.ratings.ids for party in self.parties if party.ratings.ids})

    def mixes_federated(self, p: int, *, known: bool) -> bool:
        """Return whether the lists of a party, for customers whom it knows or for new ones, follow from a federated model, too."""
        row = self.metrics["parties"][p]
        gate = row.get("list_gate") or row.get("gate")
        weights = {"federated": 1.0} if not gate else gate["known" if known else "newcomers"]
        return any(weight for name, weight in weights.items() if name.startswith("federated"))

    @property
    def ranker(self) -> Run:
        """The run whose models order lists: `lists` if there is one, else this run."""
        return self if self.lists is None else self.lists

    def add_lists(self, lists: Run) -> None:
        """Attach the run that orders lists, and add its accuracy, cost and gates to the metrics."""
        self.lists = lists
        self.metrics |= self.evaluate()
        for row, other in zip(self.metrics["parties"], lists.metrics["parties"], strict=True):
            row["list_gate"] = other.get("gate")
        kept = (*COSTS, "best_round", "config")
        self.metrics["lists"] = {name: lists.metrics[name] for name in kept}

    @property
    def judged(self) -> Run:
        """The run whose figures are in the metrics: it has not seen the test part."""
        return self.final_of or self

    def as_final_of(self, judged: Run) -> Run:
        """Return this run, trained on all ratings, with the metrics and the history of the judged one."""
        cost = {name: self.metrics[name] for name in COSTS}
        if self.lists is not None:
            cost["lists"] = {name: self.lists.metrics[name] for name in COSTS}
        judged.metrics["final"] = cost
        return self._serving(judged)

    def _serving(self, judged: Run) -> Run:
        return replace(self, metrics=judged.metrics, history=judged.history, final_of=judged)

    def recommend(
        self,
        user: Any = None,
        k: int = 10,
        party: str | None = None,
        *,
        ratings: Mapping[Any, Any] | None = None,
    ) -> Any:
        """Return the k best items that a user has not rated, from all parties or from one; for several users, a list each.

        A newcomer has no vector from training. With `ratings`, `{item: stars}`, lists follow from them; the items may be at any
        party, and `{party: {item: stars}}` names it. A user of the run may also have rated more since. Each recommendation
        has the `score` that orders the list and the predicted `rating` in stars; `to_frame` adds a reason. A list over several parties needs the user's
        likes at all of them, which no member of a federation has.
        """
        if k < 1:
            raise RunError(f"k = {k} is too small; use 1 or more")
        chosen = self.find_parties(party)
        one = user is None or isinstance(user, str) or np.ndim(user) == 0
        if ratings is not None:
            if not one:
                raise RunError("ratings belong to one user; call recommend once for each newcomer")
            who = None if user is None else id_text(user, "user")
            return self._answers.recommend(who, ratings, chosen, k)
        if user is None or isinstance(user, Mapping):
            raise RunError(
                "whom to recommend to? Pass the id of a user, or ratings={item: stars} of a newcomer"
            )
        ids = np.array([id_text(each, "user") or "" for each in ([user] if one else user)], str)
        self.find_users(ids, "for a newcomer, pass ratings={item: stars}")
        lists = [self._answers.recommend(each, {}, chosen, k) for each in ids.tolist()]
        return lists[0] if one else lists

    def similar(self, item: Any, k: int = 10, party: str | None = None) -> list[Recommendation]:
        """Return the k items of all parties that are most similar to `item`: users who like one like the other.

        `score` is the cosine of the items' directions in taste space. `party` names the party of `item` if several parties
        have that id.
        """
        self.find_parties(party)
        return self._answers.similar(item, k, party)

    @cached_property
    def _answers(self) -> RunAnswers:
        """What answers for this run in rooms above, which are imported when a person asks."""
        from verfedgnn.serving.run_answers import RunAnswers

        return RunAnswers(self)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_answers"}

    def predict(self, users: Any, items: Any, *, party: str | None = None) -> NDArray[np.float64]:
        """Predict the rating of each pair of user and item ids: two sequences of one length, or one id each.

        Predictions are clipped to the scale of the item's party; a ranking returns scores. `party` restricts
        the search for items to its catalogue.
        """
        user, item = (to_numpy(as_text([x] if isinstance(x, str | int) else x, "id")) for x in (users, items))
        if len(user) != len(item):
            raise RunError(
                f"{len(user):,} users and {len(item):,} items do not form pairs; pass the same number of both"
            )
        row = self.find_users(user)
        predicted = np.full(len(user), np.nan)
        for p in self.find_parties(party):
            table = self.parties[p].ratings
            model = self.models[p]
            place = find_positions(item, table.item_ids)
            here = np.flatnonzero(place >= 0)
            twice = here[~np.isnan(predicted[here])]
            if len(twice):
                raise RunError(f"item '{item[twice[0]]}' is an id of several parties; name one with `party`")
            u, v = (torch.from_numpy(index[here]).to(model.items.device) for index in (row, place))
            if self.config.ranks:
                predicted[here] = [float(model.score(a.view(1))[0, b]) for a, b in zip(u, v, strict=True)]
            else:
                predicted[here] = model.predict_rows(u, v).cpu().numpy().clip(*table.scale)
        missing = np.flatnonzero(np.isnan(predicted))
        if len(missing):
            where = "this run" if party is None else f"the catalogue of '{party}'"
            raise RunError(
                f"{format_count(len(missing), 'item')} not in {where}, first '{item[missing[0]]}'; leave them out"
            )
        return predicted

    def embeddings(self, party: str | None = None) -> dict[str, Embeddings]:
        """Return the vectors of all parties, or of one, as Arrow tables with ids and titles, by the party's name."""
        return {
            self.parties[p].name: Embeddings.of(self.parties[p], self.models[p])
            for p in self.find_parties(party)
        }

    def find_users(self, ids: StrArray, remedy: str = "leave them out") -> NDArray[np.int64]:
        """Return the rows of these users, also as parties write their ids; raise `RunError` for users whom this run does not know."""
        table = self.parties[0].ratings
        row = find_positions(ids, table.user_ids)
        for way in self.spellings:
            row = np.where(row < 0, find_positions(spell(ids, way), table.user_ids), row)
        row[table.user_ids[row] == ""] = -1  # forgotten users, and in a federation other parties' users
        if (row < 0).any():
            unknown = np.unique(ids[row < 0])
            raise RunError(
                f"{format_count(len(unknown), 'user')} not in training, first '{unknown[0]}': {remedy}; known users look like "
                f"'{table.user_ids[table.known_users[0]]}'"
            )
        return row

    def find_parties(self, party: str | None) -> list[int]:
        """Return the number of the party with this name, or the numbers of all parties if it is None."""
        chosen = [p for p in range(len(self.parties)) if party in (None, self.parties[p].name)]
        if not chosen:
            names = ", ".join(p.name for p in self.parties)
            raise RunError(f"there is no party '{party}' in this run; use one of: {names}")
        return chosen

    def evaluate(self, k: int = 20) -> dict[str, Any]:
        """Evaluate the judged models again; other values in the parties' rows of the metrics are kept."""
        if self.final_of is not None:
            return self.final_of.evaluate(k)
        ranks = self.config.ranks
        found = evaluate(self.prepared(), self.models, k, ranks=ranks, lists=self.ranker.models)
        before = {row["name"]: row for row in self.metrics.get("parties", [])}
        found["parties"] = [before.get(row["name"], {}) | row for row in found["parties"]]
        return found

    def prepared(self) -> list[Prepared]:
        """Return the parties' data, split as in training."""
        return prepare(self.parties, self.config, self.device, self.parts)

    def report(self, path: str | Path) -> Path:
        """Write the report of the run and return its page: a file if `path` ends in .html, else a folder as `verfedgnn report`."""
        return self._answers.report(Path(path))

    def _repr_html_(self) -> str:
        """Show the verdict, the accuracy of each party and the learning curve in a notebook."""
        return self._answers.html()

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the run to a new folder; with `overwrite`, an earlier run is replaced. Refuse users forgotten since."""
        from verfedgnn.runs.forget_record import read_forgotten_users

        folder = Path(path)
        replaced = holds_run(folder, overwrite)
        with lock_folder(folder):
            forgotten = read_forgotten_users(folder, self.folder)
            _, stay, _ = forgotten.leave_out(self.parties)
            rows = [p.ratings.user[~which] for p, which in zip(self.parties, stay, strict=True)]
            if gone := len(np.unique(np.concatenate(rows))):
                count = format_count(gone, "user")
                where = f"{folder}, or where it comes from"
                raise RunError(f"{count} of this run forgotten in {where}; train again without them")
            if replaced:
                empty_run(folder)
            if forgotten.hashes:
                forgotten.write(folder / FORGOTTEN)
            begin_folder(folder, self.judged.config, self.judged.parties, self.judged.parts)
            self.complete_folder(folder)

    def complete_folder(self, folder: Path) -> None:
        """Write the results of a training to its folder; metrics.json comes last and marks the run as finished."""
        if self.final_of is not None:
            replace(self, final_of=None)._complete_inside(folder / FINAL)
            self.final_of.complete_folder(folder)
            return
        with writing(folder):
            if self.lists is not None:
                self.lists._complete_inside(folder / LISTS)
            write_history(folder, self.history)
            write_public(folder, self.public)
            for name, models in (("model/alone", self.alone), ("model", self.models)):
                if models is not None:
                    make_folder(folder / name)
                    for file, model in zip(safe_names(self.parties), models, strict=True):
                        write_model(folder / name / f"{file}.safetensors", model)
            write_json(folder / "ledger.json", self.ledger.to_dict())
            write_json(folder / "metrics.json", self.metrics)

    def _complete_inside(self, folder: Path) -> None:
        """Write the results of a training whose folder is inside that of another one, which has the data."""
        with writing(folder):
            make_folder(folder)
            write_bytes(folder / "config.toml", self.config.to_toml().encode())
        self.complete_folder(folder)

    @classmethod
    def load(cls, path: str | Path, *, added: bool = True) -> Run:
        """Read a finished run from its folder, with the items that were added after its training unless `added` is False."""
        folder = Path(path)
        config = read_run_config(folder)
        if not (folder / "metrics.json").is_file():
            raise RunError(f"{folder} is not finished; resume it with {resume_words(folder)}")
        if not (folder / "parties").is_dir():
            raise RunError(
                f"{folder} is a coordinator's run with public parameters only; give a party's run folder"
            )
        folder = folder.resolve()  # a link may be switched meanwhile
        parties, parts = read_party_tables(folder / "parties")
        run = cls._read(folder, config, parties, parts)
        if (folder / FINAL / "metrics.json").is_file():
            whole = [np.full(len(part), TRAIN, np.int8) for part in parts]
            run = cls._read(folder / FINAL, None, parties, whole)._serving(run)
        run.folder = folder
        if not added:
            return run
        return run.with_added([read_added(added_file(folder, name)) for name in safe_names(parties)])

    @classmethod
    def _read(
        cls, folder: Path, config: Config | None, parties: list[PartyData], parts: list[NDArray[np.int8]]
    ) -> Run:
        """Read the run in `folder`, of ratings or of lists, for parties that were read before."""
        config = config or load_config(folder / "config.toml")
        files = safe_names(parties)
        with parsing(f"the run {folder}", "restore the folder or train again"):
            run = cls(
                config,
                parties,
                parts,
                [read_model(folder / "model" / f"{file}.safetensors") for file in files],
                {**json.loads((folder / "metrics.json").read_text("utf-8"))},
                read_history(folder),
                Ledger.from_dict(json.loads((folder / "ledger.json").read_text("utf-8"))),
                torch.from_numpy(ArrayFile(folder / "model" / "_public.safetensors")["public"]),
            )
            if (folder / "model" / "alone").is_dir():
                run.alone = [read_model(folder / "model/alone" / f"{file}.safetensors") for file in files]
        if (folder / LISTS / "metrics.json").is_file():
            run.lists = cls._read(folder / LISTS, None, parties, parts)
        return run


def read_run_config(folder: Path) -> Config:
    """Read the configuration of a run. Warn if the code of its GNN plug-in has changed since training."""
    if not (folder / "config.toml").is_file():
        what = "is not a run folder" if folder.exists() else "does not exist"
        raise RunError(
            f"{folder} {what}; give the folder that {worded('`verfedgnn train --out`', '`save` or `out=`')} wrote"
        )
    check_links(folder)
    config = load_config(folder / "config.toml")
    other = describe_code_change(config)
    if other is not None:
        text = (
            f"{folder} was trained with {other}; new results may differ. Install that version or train again"
        )
        warnings.warn(text, PluginWarning, stacklevel=3)
    return config


def describe_code_change(config: Config) -> str | None:
    """Describe how the installed code of a GNN plug-in differs from the configured one; None if it does not, or is built in."""
    then = config.model.code
    now = plugins.identify_gnn(config.model.gnn)
    if then is None or (now is not None and plugins.extract_digest(then) == plugins.extract_digest(now)):
        return None
    here = plugins.format_code(now) if now is not None else "without a file"
    return f"other code of GNN '{config.model.gnn}': {plugins.format_code(then)} then, {here} now"


def begin_folder(
    folder: Path, config: Config, parties: Sequence[PartyData], parts: Sequence[NDArray[np.int8]]
) -> None:
    """Create a run folder with the configuration and the parties' data, before the first round."""
    try:
        with writing(folder):
            make_folder(folder)
            write_history(folder, [])
            write_bytes(folder / "config.toml", config.to_toml().encode())
            write_party_tables(folder / "parties", parties, parts)
    except RunError:
        # An incomplete run could not be resumed. Other files in the folder are not ours.
        shutil.rmtree(folder / "parties", ignore_errors=True)
        for name in ("config.toml", "history.jsonl"):
            with suppress(OSError):
                (folder / name).unlink()
        raise


def write_public(folder: Path, public: Tensor) -> None:
    """Write the flat public parameters of the best model."""
    make_folder(folder / "model")
    write_arrays(folder / "model" / "_public.safetensors", {"public": public.cpu().numpy()})


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically."""
    write_bytes(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def write_history(folder: Path, history: Sequence[dict[str, Any]]) -> None:
    """Write history.jsonl, one validation per line."""
    write_bytes(folder / "history.jsonl", "".join(json.dumps(entry) + "\n" for entry in history).encode())


def read_history(folder: Path) -> list[dict[str, Any]]:
    """Read history.jsonl."""
    return [json.loads(line) for line in (folder / "history.jsonl").read_text("utf-8").splitlines()]


def suspect_files(folder: Path, parties: Sequence[PartyData]) -> list[str]:
    """Return which party's file may be a wrong one: most of its items are new since the run in `folder`."""
    read_run_config(folder)
    if not (folder / "metrics.json").is_file():
        raise RunError(f"{folder} is not finished; name a finished run, or leave out {option('after')}")
    before = {party.name: party.ratings.item_ids for party in read_party_tables(folder / "parties")[0]}
    new = {
        party.name: float((find_positions(party.ratings.item_ids, before[party.name]) < 0).mean())
        for party in parties
        if party.name in before
    }
    return [
        f"{100 * share:.0f} % of {name}'s items are new since {folder}; is this the right file?"
        for name, share in new.items()
        if share > MOSTLY_NEW
    ]
