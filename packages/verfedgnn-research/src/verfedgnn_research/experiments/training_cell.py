"""A cell: one training of one method on one data set with one seed, and its record."""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from verfedgnn import plugins
from verfedgnn.config import Config, build_config
from verfedgnn.core.errors import ConfigError
from verfedgnn.data import PartyData, check_parties, read_parties
from verfedgnn.data.read_options import DEFAULT_OPTIONS, ReadOptions
from verfedgnn.evaluation.lift import judge
from verfedgnn.runs.metrics_file import describe_environment, evaluate, summarise_cost
from verfedgnn.runs.prepared_data import Prepared, choose_config, choose_split
from verfedgnn_research.baselines import METHODS, MethodResult, Where, method
from verfedgnn_research.baselines.pooled_parties import declare_sizes, pool_parties, prepare_judged
from verfedgnn_research.names import CASES

CIAO = ("1", "10", "3", "2")
"""Categories of Ciao that stand for organisations, those with most ratings."""
Record = dict[str, Any]
"""The result of a training, as JSON holds it."""
RECORDS = 1
"""Version of the records. Raise it when a change of arithmetic makes old records wrong, so that they are
recomputed.
"""


@dataclass(frozen=True)
class Cell:
    """The description of one training."""

    data: tuple[str, ...]
    """A name, a file or a folder; or one file per party."""
    method: str
    gnn: str
    seed: int
    parties: int | None = None
    """Number of parties into which one data set is split."""
    settings: tuple[tuple[str, Any], ...] = ()
    """Settings that differ from the method's own."""
    users: int | None = None
    """Number of users to keep, from the first on; None keeps all."""
    reading: ReadOptions = DEFAULT_OPTIONS
    """Options of the data reader."""
    by: str | None = None
    """Item column that divides one data set into parties."""

    @property
    def name(self) -> str:
        """Name for progress lines."""
        parts = [
            ",".join(self.data),
            self.method,
            *([self.gnn] if method(self.method).by_gnn else []),
            f"seed {self.seed}",
        ]
        return " ".join(parts + [f"{key.split('.')[-1]}={value}" for key, value in self.settings])

    def config(self) -> Config:
        """Return the method's settings with the cell's own changes."""
        chosen = method(self.method)
        base = build_config(preset=chosen.preset, model=self.gnn, overrides={"seed": self.seed})
        if base.split.kind == "auto":  # the same parts for every method
            base = base.with_values(
                {"split.kind": "rating", "split.fractions": [0.6, 0.2, 0.2], "final": False}
            )
        return chosen.configure(base).with_values(dict(self.settings))

    def read(self) -> list[PartyData]:
        """Read the data and return its parties."""
        return _read(self.data, self.reading, self.parties, self.seed, self.users, self.by)

    def key(self) -> str:
        """Return the hash that identifies the cell's record; it covers everything that decides the result,
        data included.
        """
        config = self.config()
        version = method(self.method).version
        about = [RECORDS, checksum(self), self.parties, self.users, self.method, config.fingerprint()]
        if version > 1:
            about.append(version)
        about += self._plugins(config)
        if self.parties is None or self.by is not None:  # the files decide who has which item, not the seed
            about.append(_cut(self.read()))
        return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]

    def _plugins(self, config: Config) -> list[str]:
        """Return the code hashes of plug-ins, which their names do not determine; empty without plug-ins."""
        used: list[type] = [] if self.method in METHODS else [type(method(self.method))]
        if self.gnn not in plugins.GNNS:
            used.append(plugins.load_gnn(self.gnn))
        return [plugins.hash_code(plugin) for plugin in used]

    def run(self, where: Where) -> Record:
        """Train and evaluate, and return the record."""
        chosen = method(self.method)
        parties = declare_sizes(self.read())
        config = choose_split(parties, self.config())
        ranks = choose_config(
            parties, config
        ).ranks  # there are lists only where a party has nothing but likes
        trained = chosen.train(parties, config, where)
        prepared = prepare_judged(parties, config, where.device)
        judged = evaluate(prepared, trained.models, ranks=ranks, lists=trained.lists)
        return {
            **self.about(where),
            "split": config.split.kind,
            "customers": judge_customers(prepared, trained, ranks=ranks),
            "test": {name: _short(value) for name, value in judged["test"].items()},
            "valid": {name: _short(value) for name, value in judged["valid"].items()},
            **summarise_cost(trained.ledger, trained.rounds, len(parties), trained.seconds),
            "best_round": trained.best_round,
        }

    def about(self, where: Where) -> Record:
        """Return the part of a record that says what was trained, on which data and with which code."""
        return {
            "key": self.key(),
            "data": list(self.data),
            **({"reading": self.reading.to_arguments()} if self.reading else {}),
            "data_sha256": checksum(self),
            "parties": len(self.read()),
            **({} if self.users is None else {"users": self.users}),
            "method": self.method,
            "version": method(self.method).version,
            "gnn": self.gnn,
            "seed": self.seed,
            "settings": dict(self.settings),
            "config": self.config().fingerprint(),
            "commit": commit(),
            "environment": describe_environment(where.device),
        }


def read_case(name: str, seed: int, parties: int | None = None) -> list[PartyData]:
    """Read a data set as the parties that it is divided among; `parties` is their number where `seed` divides it."""
    if name not in CASES:
        return read_parties([name], parties=parties, seed=seed)
    folder = Path(os.environ.get("VERFEDGNN_DATA", ""))
    if not folder.name:
        raise ConfigError(f"{name} is read from the folder VERFEDGNN_DATA, which is not set; name the folder")
    if name == "genre":
        return read_parties(["ml-1m"], parties=3, seed=seed, by="genre")
    if name == "amazon":
        shops = folder / "amazon-books-movies-dense"
        files = {shop: shops / f"Amazon-{shop.title()}-Dense.inter" for shop in ("books", "movies")}
        return read_parties(files, duplicates="first")
    if name == "douban":
        return read_parties(
            {kind: folder / "douban" / f"douban_{kind}" / "ratings.dat" for kind in ("book", "music")}
        )
    if name == "sport-cloth":
        shops = folder / "amazon-sport-cloth"
        return read_parties(
            {kind: shops / f"{kind}.csv.gz" for kind in ("sport", "cloth")},
            events=5,
        )
    with tempfile.TemporaryDirectory() as made:
        return read_parties(
            _divide_ciao(folder / "ciao" / "ratings.csv.gz", Path(made)),
            users="all" if name == "ciao-all" else "any",
        )


def _divide_ciao(source: Path, folder: Path) -> dict[str, Path]:
    """Write one file per category; ids of items get the category as a prefix, because some are in two."""
    rows: dict[str, dict[tuple[str, str], tuple[str, str]]] = {category: {} for category in CIAO}
    with gzip.open(source, "rt") as file:
        for row in csv.DictReader(file):
            if row["category"] in rows and float(row["rating"]) > 0:
                rows[row["category"]].setdefault((row["user"], row["item"]), (row["rating"], row["time"]))
    files = {}
    for category, ratings in rows.items():
        lines = [
            f"{user},{category}-{item},{stars},{time}\n" for (user, item), (stars, time) in ratings.items()
        ]
        files[f"category-{category}"] = folder / f"{category}.csv"
        files[f"category-{category}"].write_text("user,item,rating,time\n" + "".join(lines))
    return files


def judge_customers(
    prepared: Sequence[Prepared], trained: MethodResult, *, ranks: bool
) -> dict[str, dict[str, dict[str, float | None]]]:
    """Return, for the validation and the test part, what the verdict measures for known customers and for newcomers.

    Cases are those of `evaluation.lift.judge`, over all parties. Newcomers are there only if the split withholds users.
    """
    figures: dict[str, dict[str, dict[str, float | None]]] = {}
    for part in ("valid", "test"):
        tables = [each if part == "test" else _to_validate(each) for each in prepared]
        figures[part] = {"known": {}, "newcomers": {}}
        for customers, found in figures[part].items():
            for lists, models in ((False, trained.models), (True, trained.lists or trained.models)):
                if not lists and ranks:
                    continue
                cases = [
                    judge(table, {"it": model}, ranks=lists, new=customers == "newcomers").values
                    for table, model in zip(tables, models, strict=True)
                ]
                for metric in ("hitrate@20", "ndcg@20") if lists else ("rmse",):
                    values = np.concatenate([party[metric]["it"] for party in cases])
                    mean = float(values.mean()) if len(values) else None
                    found[metric] = _short(mean if lists or mean is None else mean**0.5)
    return figures


def _to_validate(party: Prepared) -> Prepared:
    """Return a party whose validation part is judged in the place of its test part."""
    known = torch.bincount(party.train.user.long(), minlength=party.party.ratings.n_users) > 0
    new = ~known[party.valid.user.long()]
    return replace(party, test=party.valid, newcomers=party.valid.take(new), valid=party.valid.take(slice(0)))


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def _load(
    data: tuple[str, ...], reading: ReadOptions, seed: int, parties: int | None = None, by: str | None = None
) -> list[PartyData]:
    if data[0] in CASES:
        return read_case(data[0], seed)
    return read_parties(list(data), parties=parties, seed=seed, by=by, reading=reading)


@lru_cache(maxsize=4)
def _read(
    data: tuple[str, ...],
    reading: ReadOptions,
    parties: int | None,
    seed: int,
    users: int | None,
    by: str | None,
) -> list[PartyData]:
    found = _load(data, reading, seed, parties, by)
    if users is None:
        return found
    chosen = np.arange(min(users, found[0].ratings.n_users))
    kept = [PartyData(party.name, party.ratings.select_users(chosen)) for party in found]
    check_parties(kept)
    return kept


def _cut(parties: Sequence[PartyData]) -> str:
    text = "\n".join(f"{party.name}\t{item}" for party in parties for item in party.ratings.item_ids.tolist())
    return hashlib.sha256(text.encode()).hexdigest()


def checksum(cell: Cell) -> str:
    """Return the SHA-256 of a cell's data, independent of the order of rows and of the split into parties."""
    return _checksum(cell.data, cell.reading, cell.seed if "synthetic" in cell.data else 0)


@lru_cache(maxsize=16)
def _checksum(data: tuple[str, ...], reading: ReadOptions, seed: int) -> str:
    table = pool_parties(_load(data, reading, seed))
    order = np.lexsort((table.item, table.user))
    digest = hashlib.sha256("\n".join([*table.user_ids.tolist(), "", *table.item_ids.tolist()]).encode())
    for column in (table.user, table.item, table.rating):
        digest.update(np.ascontiguousarray(column[order]).tobytes())
    return digest.hexdigest()


@lru_cache(maxsize=1)
def commit() -> str | None:
    """Return the commit of this code, with a + if files differ from it; without a repository,
    VERFEDGNN_COMMIT.
    """
    given = os.environ.get("VERFEDGNN_COMMIT")
    root = Path(__file__).resolve().parents[5]
    if given or not (root / ".git").exists():
        return given

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, check=False
        ).stdout.strip()

    return git("rev-parse", "--short=12", "HEAD") + (
        "+" if git("status", "--porcelain", "--", "src", "packages") else ""
    )
