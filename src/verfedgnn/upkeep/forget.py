"""Forgetting users and items: their ratings leave a run folder, and the model is repaired without them.

The steps of `forget_users` are, in this order:

1. The journal names the rows of the users and the items that they rated. Copies that nobody needs after a training are deleted:
   last releases, results before the gate, reports.
2. Items that were added after the training lose the users' ratings, and their vectors are estimated again.
3. In every model, the users get the vector of the average user, and the items that they rated are estimated again from the other
   users' ratings (`item_prior.py`). EASE loses the users' items.
4. Checkpoints lose the users' rows.
5. The tables lose the users' ratings, and last the users' ids.
6. The record says what was done and what remains, and the journal is removed.

Each step can be repeated. If the process is killed, the next call finishes the journal first. Files are replaced, and no copy is kept.
`forget_items` does the same for items (`forget_items.py`).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from verfedgnn.config import load_config
from verfedgnn.core.array_files import read_arrays, write_arrays
from verfedgnn.core.errors import RunError
from verfedgnn.core.files import lock_folder, writing
from verfedgnn.core.item_item import ItemScores
from verfedgnn.data import TRAIN, PartyData
from verfedgnn.data.ids import find_positions
from verfedgnn.data.ratings import format_count
from verfedgnn.gnn.model import Model
from verfedgnn.runs.added_items import added_file, lock_added, read_added, rewrite_added
from verfedgnn.runs.forget_record import append_record, is_federated, note_forgotten
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.party_tables import read_party_tables, safe_names, write_party_tables
from verfedgnn.runs.run import Run, read_run_config, write_json, write_model
from verfedgnn.runs.run_layout import FINAL, FORGET_JOURNAL, LAST_RELEASE, REPORT, TRAININGS
from verfedgnn.upkeep.forget_items import ItemJournal, plan_items, remove_items
from verfedgnn.upkeep.item_prior import absorb_item_scores, fit_item_prior
from verfedgnn.upkeep.new_items import NewItems

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class ForgetJournal:
    """What is in progress, without ids."""

    users: list[int]
    """Rows of the users to forget, in every table of the run."""
    items: dict[str, list[int]]
    """Rows of the items that the users rated, by the file name of the party."""
    ratings: dict[str, int]
    """Number of the users' ratings at each party."""
    who: list[str]
    """Keyed hashes of the users' ids."""


def forget_users(folder: Path, users: Sequence[str]) -> dict[str, Any]:
    """Remove users from the finished run in `folder` and return the record; finish an interrupted request first."""
    with _open_run(folder):
        _finish(folder)
        run = Run.load(folder, added=False)
        rows = find_positions(np.array(list(users), dtype=np.str_), run.parties[0].ratings.user_ids)
        rows[np.array(list(users), dtype=np.str_) == ""] = -1
        if not len(rows) or (rows < 0).any():
            missing = format_count(int((rows < 0).sum()), "user")
            raise RunError(
                f"{missing} not in {folder}; check the ids. Users who were forgotten before are not there either"
            )
        journal = _plan(folder, run, np.unique(rows), sorted(set(users)))
        with writing(folder):
            write_json(folder / FORGET_JOURNAL, asdict(journal))
        record = _finish(folder)
    assert record is not None
    return record


def forget_items(folder: Path, items: Sequence[str], party: str | None = None) -> dict[str, Any]:
    """Remove items of one party from the finished run in `folder` and return the record; finish an interrupted request first.

    `party` is needed if several parties have items with these ids.
    """
    with _open_run(folder):
        _finish(folder)
        journal = plan_items(folder, items, party)
        with writing(folder):
            write_json(folder / FORGET_JOURNAL, asdict(journal))
        record = _finish(folder)
    assert record is not None
    return record


def finish_forgetting(folder: Path) -> dict[str, Any] | None:
    """Carry out the journal of an interrupted request in `folder` and return the record; None if there is no journal."""
    with _open_run(folder):
        return _finish(folder)


@contextmanager
def _open_run(folder: Path) -> Iterator[None]:
    read_run_config(folder)  # raises if there is no run, before a lock creates the folder
    if not (folder / "metrics.json").is_file():
        raise RunError(
            f"{folder} is not finished and still holds every user; finish its training and forget then, or delete the folder"
        )
    with lock_folder(folder):
        yield


def _finish(folder: Path) -> dict[str, Any] | None:
    """Carry out the journal in a locked folder."""
    if not (folder / FORGET_JOURNAL).is_file():
        return None
    journal = _read_journal(folder / FORGET_JOURNAL)
    with writing(folder):
        _remove_copies(folder)
        if isinstance(journal, ItemJournal):
            record = remove_items(folder, journal)
            (folder / FORGET_JOURNAL).unlink()
            return record
        rows = np.array(journal.users, np.int64)
        parties, parts = _without_ratings(folder, rows)
        _forget_added(folder, rows)
        whole = [np.full(len(part), TRAIN, np.int8) for part in parts]
        for each in TRAININGS:
            if (folder / each / "metrics.json").is_file():
                used = whole if each.startswith(FINAL) else parts
                _repair_models(folder / each, parties, used, journal, rows)
        ids = parties[0].ratings.user_ids.copy()
        write_party_tables(folder / "parties", parties, parts)  # the ids are still there
        ids[rows] = ""
        blank = [PartyData(party.name, replace(party.ratings, user_ids=ids)) for party in parties]
        write_party_tables(folder / "parties", blank, parts)
        record = _write_record(folder, journal)
        (folder / FORGET_JOURNAL).unlink()
    return record


def _read_journal(file: Path) -> ForgetJournal | ItemJournal:
    try:
        values = json.loads(file.read_text("utf-8"))
        return ItemJournal(**values) if "party" in values else ForgetJournal(**values)
    except (OSError, ValueError, TypeError) as error:
        raise RunError(f"{file} cannot be read ({error}); remove it, then forget the users again") from None


def _remove_copies(folder: Path) -> None:
    """Remove what holds ratings or rows of users and is not needed once a training has finished.

    These are reports that name users, a party's last releases, checkpoints, and what a kill left of a file.
    """
    copies = [folder / REPORT]
    for name in TRAININGS:
        place = folder / name
        skipped = name and not (place / "metrics.json").is_file()
        copies += [place] if skipped else [place / LAST_RELEASE, place / "checkpoint"]
    for each in copies:
        if each.is_dir():
            shutil.rmtree(each)
    with lock_added(folder):  # nobody else writes to a run folder that is locked
        for each in list(folder.rglob(".*.part")):
            if each.is_dir():
                shutil.rmtree(each)
            else:
                each.unlink(missing_ok=True)


def _plan(folder: Path, run: Run, rows: Rows, users: Sequence[str]) -> ForgetJournal:
    items = {}
    ratings = {}
    for file, party in zip(safe_names(run.parties), run.parties, strict=True):
        mine = np.isin(party.ratings.user, rows)
        items[file] = np.unique(party.ratings.item[mine]).tolist()
        ratings[party.name] = int(mine.sum())
    return ForgetJournal(rows.tolist(), items, ratings, note_forgotten(folder, np.array(users, np.str_)))


def _without_ratings(folder: Path, rows: Rows) -> tuple[list[PartyData], list[NDArray[np.int8]]]:
    parties, parts = read_party_tables(folder / "parties")
    kept = [~np.isin(party.ratings.user, rows) for party in parties]
    tables = [
        PartyData(party.name, party.ratings.take(stay)) for party, stay in zip(parties, kept, strict=True)
    ]
    return tables, [part[stay] for part, stay in zip(parts, kept, strict=True)]


def _forget_added(folder: Path, rows: Rows) -> None:
    """Remove the users' ratings of items that were added after the training, and estimate these items again."""
    run = Run.load(folder, added=False)
    ids = set(run.parties[0].ratings.user_ids[rows].tolist()) - {""}
    with lock_added(folder):
        for file, party in zip(safe_names(run.parties), run.parties, strict=True):
            items = list(read_added(added_file(folder, file)).values())
            if any(ids & item.ratings.keys() for item in items):
                after = [
                    replace(item, ratings={u: given for u, given in item.ratings.items() if u not in ids})
                    for item in items
                ]
                items = NewItems(folder, run, party.name).estimate_all(after)
            rewrite_added(added_file(folder, file), items)  # also without lines that could not be read


def _repair_models(
    place: Path,
    parties: Sequence[PartyData],
    parts: Sequence[NDArray[np.int8]],
    journal: ForgetJournal,
    rows: Rows,
) -> None:
    folders = [each for each in (place / "model", place / "model" / "alone") if each.is_dir()]
    ranks = load_config(place / "config.toml").ranks
    for folder in folders:
        for file, party, part in zip(safe_names(parties), parties, parts, strict=True):
            path = folder / f"{file}.safetensors"
            arrays = read_arrays(path)
            model = PartyModel.from_arrays({key: torch.from_numpy(value) for key, value in arrays.items()})
            items = np.array(journal.items[file], np.int64)
            write_model(path, _repair(model, party, part, rows, items, ranks=ranks))
    public = place / "model" / "_public.safetensors"
    (flat,) = read_arrays(public).values()
    changed = _reset_public(place, flat, rows, parties[0].ratings.n_users)
    write_arrays(public, {"public": changed})


def _repair(
    model: PartyModel, party: PartyData, part: NDArray[np.int8], rows: Rows, items: Rows, *, ranks: bool
) -> PartyModel:
    """Return a model in which users are average and items are estimated from the remaining ratings."""
    users = model.users.clone()
    others = np.setdiff1d(party.ratings.known_users, rows)
    users[torch.from_numpy(rows)] = users[torch.from_numpy(others)].mean(0)
    scores = None if model.item_scores is None else _forget_history(model.item_scores, rows)
    model = replace(model, users=users, item_scores=scores)
    prior = fit_item_prior(model, party.ratings, part, ranks=ranks)
    absorbed = absorb_item_scores(model) - model.items.double().numpy()
    vectors = model.items.clone()
    table = party.ratings
    train = np.flatnonzero(part == TRAIN)
    for item in items:
        mine = train[table.item[train] == item]
        found = prior.estimate(table.user[mine].astype(np.int64), table.rating[mine], exposure=1.0)
        vectors[item] = torch.from_numpy((found - absorbed[item]).astype(np.float32))
    return replace(model, items=vectors)


def _forget_history(scores: ItemScores, rows: Rows) -> ItemScores:
    """Return the weights between items without the items of these users."""
    counts = np.diff(scores.pointers.numpy())
    stay = np.ones(len(scores.history), bool)
    for row in rows:
        stay[int(scores.pointers[row]) : int(scores.pointers[row + 1])] = False
    counts[rows] = 0
    pointers = torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))
    return replace(scores, pointers=pointers, history=scores.history[torch.from_numpy(stay)])


def _reset_public(place: Path, flat: NDArray[Any], rows: Rows, users: int) -> NDArray[Any]:
    """Return flat public parameters whose rows of these users are those of the average user."""
    model = Model(load_config(place / "config.toml").model, users)
    changed = flat.copy()
    start = 0
    stay = np.setdiff1d(np.arange(users), rows)
    for name, shape in model.shapes.items():
        size = int(np.prod(shape))
        if name in model.per_user:
            view = changed[start : start + size].reshape(shape)
            view[rows] = view[stay].mean(0)
        start += size
    return changed


def _write_record(folder: Path, journal: ForgetJournal) -> dict[str, Any]:
    remains = [
        "the other users' vectors were trained together with these users, until the next training",
        "weights between items (EASE) and the mixture of the gate are sums over all users, until the next training",
        "older run folders, and your own files and databases, from which the next training reads",
    ]
    if is_federated(folder):
        remains = [
            "the users' rows of the public parameters in the run folders of the other members",
            "sums and releases that the other members received before, and the other members' own ratings",
            *remains,
        ]
    entry = {
        "users": journal.who,
        "ratings": journal.ratings,
        "items_estimated_again": {file: len(rows) for file, rows in journal.items.items()},
        "remains": remains,
    }
    return append_record(folder, entry)
