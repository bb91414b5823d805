"""A cell: one training of one method on one data set with one seed, and its record."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from verfedgnn import plugins
from verfedgnn.config import Config, build_config
from verfedgnn.data import PartyData, check_parties, read_parties
from verfedgnn.data.read_options import DEFAULT_OPTIONS, ReadOptions
from verfedgnn.runs.metrics_file import describe_environment, evaluate, summarise_cost
from verfedgnn.runs.prepared_data import prepare
from verfedgnn_research.baselines import METHODS, Where, method
from verfedgnn_research.baselines.pooled_parties import declare_sizes, pool_parties

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

    def run(self, where: Where) -> dict[str, Any]:
        """Train and evaluate, and return the record."""
        chosen = method(self.method)
        config = self.config()
        parties = declare_sizes(self.read())
        trained = chosen.train(parties, config, where)
        prepared = prepare(parties, config, where.device)
        judged = evaluate(prepared, trained.models, ranks=config.ranks, lists=trained.lists)
        return {
            **self.about(where),
            "test": {name: _short(value) for name, value in judged["test"].items()},
            "valid": {name: _short(value) for name, value in judged["valid"].items()},
            **summarise_cost(trained.ledger, trained.rounds, len(parties), trained.seconds),
            "best_round": trained.best_round,
        }

    def about(self, where: Where) -> dict[str, Any]:
        """Return the part of a record that says what was trained, on which data and with which code."""
        return {
            "key": self.key(),
            "data": list(self.data),
            **({"reading": self.reading.to_arguments()} if self.reading else {}),
            "data_sha256": checksum(self),
            "parties": len(self.read()),
            **({} if self.users is None else {"users": self.users}),
            "method": self.method,
            "gnn": self.gnn,
            "seed": self.seed,
            "settings": dict(self.settings),
            "config": self.config().fingerprint(),
            "commit": commit(),
            "environment": describe_environment(where.device),
        }


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


@lru_cache(maxsize=4)
def _read(
    data: tuple[str, ...],
    reading: ReadOptions,
    parties: int | None,
    seed: int,
    users: int | None,
    by: str | None,
) -> list[PartyData]:
    found = read_parties(list(data), parties=parties, seed=seed, by=by, reading=reading)
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
    table = pool_parties(read_parties(list(data), seed=seed, reading=reading))
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
