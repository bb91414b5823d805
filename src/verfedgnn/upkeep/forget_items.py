"""Forgetting items: their rows leave the tables, models and features of one party.

Rows are removed file by file. A file that has lost them already is recognised by its number of items, so each step can be repeated.
Users' vectors stay: they are public, and only a training can change them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from verfedgnn.core.array_files import read_arrays
from verfedgnn.core.errors import RunError
from verfedgnn.core.item_item import ItemScores
from verfedgnn.data import PartyData
from verfedgnn.data.ids import find_positions
from verfedgnn.data.ratings import format_count
from verfedgnn.runs.added_items import added_file, lock_added, read_added, rewrite_added
from verfedgnn.runs.feature_table import features_file, read_features, write_features
from verfedgnn.runs.forget_record import append_record, hash_ids, is_federated
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.party_tables import read_party_tables, safe_names, write_party_tables
from verfedgnn.runs.run import write_model
from verfedgnn.runs.run_layout import TRAININGS

Kept = NDArray[np.bool_]


@dataclass(frozen=True)
class ItemJournal:
    """Items that are being forgotten; it is removed at the end."""

    party: str
    items: list[str]
    """Ids, of items of the training and of items that were added later."""
    rows: list[int]
    """Rows of those of the training."""
    size: int
    """Number of items of the training before."""
    ratings: int
    """Number of their ratings."""


def plan_items(folder: Path, items: Sequence[str], party: str | None) -> ItemJournal:
    """Return what has to be removed; raise `RunError` if an item is unknown, or if several parties have it."""
    parties, _ = read_party_tables(folder / "parties")
    wanted = np.array(sorted(set(items)), dtype=np.str_)
    found: dict[str, ItemJournal] = {}
    missing = len(wanted)
    for file, each in zip(safe_names(parties), parties, strict=True):
        if party not in (None, each.name):
            continue
        table = each.ratings
        rows = find_positions(wanted, table.item_ids)
        added = read_added(added_file(folder, file))
        known = (rows >= 0) | np.isin(wanted, list(added))
        missing = min(missing, int((~known).sum()))
        if known.all():
            rows = np.sort(rows[rows >= 0])
            later = sum(len(added[item].ratings) for item in wanted.tolist() if item in added)
            count = int(np.isin(table.item, rows).sum()) + later
            found[each.name] = ItemJournal(each.name, wanted.tolist(), rows.tolist(), table.n_items, count)
    if len(found) > 1:
        raise RunError(f"several parties have these items ({', '.join(found)}); choose one with --party")
    if not found:
        where = folder if party is None else f"party '{party}' of {folder}"
        raise RunError(f"{format_count(missing, 'item')} not in {where}; check the ids, and give one party's")
    return next(iter(found.values()))


def remove_items(folder: Path, journal: ItemJournal) -> dict[str, Any]:
    """Carry out the journal, which may have been begun before, and return the record."""
    parties, parts = read_party_tables(folder / "parties")
    number = [party.name for party in parties].index(journal.party)
    file = safe_names(parties)[number]
    stay = np.ones(journal.size, bool)
    stay[journal.rows] = False
    _remove_added(folder, file, journal.items)
    _remove_features(folder, file, journal.items)
    for place in (folder / each for each in TRAININGS):
        if (place / "metrics.json").is_file():
            _cut_models(place, file, stay)
    table = parties[number].ratings
    if table.n_items == journal.size and not stay.all():
        parts[number] = parts[number][stay[table.item]]
        parties[number] = PartyData(journal.party, table.select_items(stay))
        write_party_tables(folder / "parties", parties, parts)
    remains = ["the users' vectors were trained with the ratings of these items, until the next training"]
    if is_federated(folder):
        remains.append(
            "sums that the other members received before; they did not learn which items there are"
        )
    entry = {
        "users": [],
        "items": hash_ids(folder, journal.items),
        "ratings": {journal.party: journal.ratings},
        "items_estimated_again": {},
        "remains": remains,
    }
    return append_record(folder, entry)


def _remove_added(folder: Path, file: str, items: Collection[str]) -> None:
    path = added_file(folder, file)
    if path.is_file():
        with lock_added(folder):
            rewrite_added(path, [item for name, item in read_added(path).items() if name not in items])


def _remove_features(folder: Path, file: str, items: Sequence[str]) -> None:
    path = features_file(folder, file)
    table = read_features(path)
    if table is not None:
        write_features(path, table.select(~np.isin(table.ids, items)))


def _cut_models(place: Path, file: str, stay: Kept) -> None:
    for folder in (place / "model", place / "model" / "alone"):
        path = folder / f"{file}.safetensors"
        if not path.is_file():
            continue
        arrays = read_arrays(path)
        model = PartyModel.from_arrays({key: torch.from_numpy(value) for key, value in arrays.items()})
        if len(model.items) == len(stay):
            rows = torch.from_numpy(np.flatnonzero(stay))
            scores = None if model.item_scores is None else _cut_scores(model.item_scores, stay)
            cut = replace(
                model, items=model.items[rows], embeddings=model.embeddings[rows], item_scores=scores
            )
            write_model(path, cut)


def _cut_scores(scores: ItemScores, stay: Kept) -> ItemScores:
    """Return the weights between the items that stay, and the users' items among them."""
    place = np.cumsum(stay) - 1
    included = stay[scores.kept.numpy()]
    rows = torch.from_numpy(np.flatnonzero(included))
    history = scores.history.numpy()
    has = included[history]
    ends = np.concatenate([[0], np.cumsum(has)])[scores.pointers.numpy()]
    return replace(
        scores,
        weights=scores.weights[rows][:, rows],
        kept=torch.from_numpy(place[scores.kept.numpy()[included]]),
        pointers=torch.from_numpy(ends.astype(np.int64)),
        history=torch.from_numpy((np.cumsum(included) - 1)[history[has]].astype(np.int32)),
        items=int(stay.sum()),
    )
