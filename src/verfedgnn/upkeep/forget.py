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

`forget_items` removes the rows of items from the tables and models of one party. A file that has lost them already is
recognised by its number of items. Users' vectors stay: they are public, and only a training can change them.

Each step can be repeated. If the process is killed, the next call finishes the journal first. Files are replaced, and no copy is kept.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
from verfedgnn.runs.forget_record import append_record, hash_ids, is_federated, note_forgotten
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.party_tables import read_party_tables, safe_names, write_party_tables
from verfedgnn.runs.run import Run, read_run_config, write_json, write_model
from verfedgnn.runs.run_folder import FINAL, FORGET_JOURNAL, LAST_RELEASE, REPORT, TRAININGS
from verfedgnn.upkeep.item_prior import absorb_item_scores, fit_item_prior
from verfedgnn.upkeep.new_items import NewItems

Rows = NDArray[np.int64]


Kept = NDArray[np.bool_]
UNTIL = "until the next training"


@dataclass(frozen=True)
class UserJournal:
    """Users who are being forgotten, without ids; it is removed at the end."""

    users: list[int]
    """Rows of the users to forget, in every table of the run."""
    items: dict[str, list[int]]
    """Rows of the items that the users rated, by the file name of the party."""
    ratings: dict[str, int]
    """Number of the users' ratings at each party."""
    who: list[str]
    """Keyed hashes of the users' ids."""


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


Journal = UserJournal | ItemJournal


def forget_users(folder: Path, users: Sequence[str]) -> dict[str, Any]:
    """Remove users from the finished run in `folder` and return the record; finish an interrupted request first."""
    return _forget(folder, partial(_plan_users, folder, users))


def forget_items(folder: Path, items: Sequence[str], party: str | None = None) -> dict[str, Any]:
    """Remove items of one party from the finished run in `folder` and return the record; finish an interrupted request first.

    `party` is needed if several parties have items with these ids.
    """
    return _forget(folder, partial(_plan_items, folder, items, party))


def _forget(folder: Path, plan: Callable[[], Journal]) -> dict[str, Any]:
    with _open_run(folder):
        _finish(folder)
        with writing(folder):
            write_json(folder / FORGET_JOURNAL, asdict(plan()))
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
        entry = (
            _remove_items(folder, journal)
            if isinstance(journal, ItemJournal)
            else _remove_users(folder, journal)
        )
        record = append_record(folder, entry)
        (folder / FORGET_JOURNAL).unlink()
    return record


def _read_journal(file: Path) -> Journal:
    try:
        values = json.loads(file.read_text("utf-8"))
        return ItemJournal(**values) if "party" in values else UserJournal(**values)
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


def _plan_users(folder: Path, users: Sequence[str]) -> UserJournal:
    run = Run.load(folder, added=False)
    wanted = np.array(sorted(set(users)), np.str_)
    rows = find_positions(wanted, run.parties[0].ratings.user_ids)
    rows[wanted == ""] = -1
    if not len(rows) or (rows < 0).any():
        missing = format_count(int((rows < 0).sum()), "user")
        raise RunError(
            f"{missing} not in {folder}; check the ids. Users who were forgotten before are not there either"
        )
    items, ratings = {}, {}
    for file, party in zip(safe_names(run.parties), run.parties, strict=True):
        mine = np.isin(party.ratings.user, rows)
        items[file] = np.unique(party.ratings.item[mine]).tolist()
        ratings[party.name] = int(mine.sum())
    return UserJournal(np.unique(rows).tolist(), items, ratings, note_forgotten(folder, wanted))


def _remove_users(folder: Path, journal: UserJournal) -> dict[str, Any]:
    """Carry out the journal, which may have been begun before, and return the entry of the record."""
    rows = np.array(journal.users, np.int64)
    parties, parts = _without_ratings(folder, rows)
    _forget_added(folder, rows)
    for place in _trainings(folder):
        ranks = load_config(place / "config.toml").ranks
        final = place.is_relative_to(folder / FINAL)
        used = [np.full(len(part), TRAIN, np.int8) for part in parts] if final else parts
        for file, party, part in zip(safe_names(parties), parties, used, strict=True):
            items = np.array(journal.items[file], np.int64)
            _rewrite_models(
                place, file, partial(_repair, party=party, part=part, rows=rows, items=items, ranks=ranks)
            )
        _reset_public(place, rows, parties[0].ratings.n_users)
    ids = parties[0].ratings.user_ids.copy()
    write_party_tables(folder / "parties", parties, parts)  # the ids are still there
    ids[rows] = ""
    blank = [PartyData(party.name, replace(party.ratings, user_ids=ids)) for party in parties]
    write_party_tables(folder / "parties", blank, parts)
    remains = [
        f"the other users' vectors were trained together with these users, {UNTIL}",
        f"weights between items (EASE) and the mixture of the gate are sums over all users, {UNTIL}",
        f"the model shows which items were estimated again, and so which items these users rated, {UNTIL}",
        "older run folders, and your own files and databases, from which the next training reads",
    ]
    if is_federated(folder):
        remains = [
            "the users' rows of the public parameters in the run folders of the other members",
            "sums and releases that the other members received before, and the other members' own ratings",
            *remains,
        ]
    return {
        "users": journal.who,
        "ratings": journal.ratings,
        "items_estimated_again": {file: len(rows) for file, rows in journal.items.items()},
        "remains": remains,
    }


def _trainings(folder: Path) -> list[Path]:
    """Return the folders of the finished trainings of a run: of ratings and, if there is one, of lists."""
    return [place for place in (folder / name for name in TRAININGS) if (place / "metrics.json").is_file()]


def _rewrite_models(place: Path, file: str, change: Callable[[PartyModel], PartyModel]) -> None:
    """Replace a party's models, federated and alone, by changed ones."""
    for folder in (place / "model", place / "model" / "alone"):
        path = folder / f"{file}.safetensors"
        if path.is_file():
            arrays = {key: torch.from_numpy(value) for key, value in read_arrays(path).items()}
            write_model(path, change(PartyModel.from_arrays(arrays)))


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
    return replace(model, items=vectors, embeddings=_follow(model, vectors, items))


def _follow(model: PartyModel, vectors: Tensor, items: Rows) -> Tensor:
    """Return the embeddings, those of `items` by the regression on vectors that holds for the other items.

    As they were, they would be a trace of the users' ratings.
    """
    others = np.setdiff1d(np.arange(len(vectors)), items)
    slopes = np.linalg.pinv(vectors[others].numpy()) @ model.embeddings[others].numpy()
    embeddings = model.embeddings.clone()
    embeddings[items] = vectors[items] @ torch.from_numpy(slopes)
    return embeddings


def _forget_history(scores: ItemScores, rows: Rows) -> ItemScores:
    """Return the weights between items without the items of these users."""
    counts = np.diff(scores.pointers.numpy())
    stay = np.ones(len(scores.history), bool)
    for row in rows:
        stay[int(scores.pointers[row]) : int(scores.pointers[row + 1])] = False
    counts[rows] = 0
    pointers = torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))
    return replace(scores, pointers=pointers, history=scores.history[torch.from_numpy(stay)])


def _reset_public(place: Path, rows: Rows, users: int) -> None:
    """Give these users the rows of the average user in the public parameters of a training."""
    file = place / "model" / "_public.safetensors"
    (flat,) = read_arrays(file).values()
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
    write_arrays(file, {"public": changed})


def _plan_items(folder: Path, items: Sequence[str], party: str | None) -> ItemJournal:
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


def _remove_items(folder: Path, journal: ItemJournal) -> dict[str, Any]:
    """Carry out the journal, which may have been begun before, and return the entry of the record."""
    parties, parts = read_party_tables(folder / "parties")
    number = [party.name for party in parties].index(journal.party)
    file = safe_names(parties)[number]
    stay = np.ones(journal.size, bool)
    stay[journal.rows] = False
    added = added_file(folder, file)
    if added.is_file():
        with lock_added(folder):
            kept = [item for name, item in read_added(added).items() if name not in journal.items]
            rewrite_added(added, kept)
    for place in _trainings(folder):
        _rewrite_models(place, file, partial(_cut_model, stay=stay))
    table = parties[number].ratings
    if table.n_items == journal.size and not stay.all():
        parts[number] = parts[number][stay[table.item]]
        parties[number] = PartyData(journal.party, table.select_items(stay))
        write_party_tables(folder / "parties", parties, parts)
    remains = [f"the users' vectors were trained with the ratings of these items, {UNTIL}"]
    if is_federated(folder):
        remains.append(
            "sums that the other members received before; they did not learn which items there are"
        )
    return {
        "users": [],
        "items": hash_ids(folder, journal.items),
        "ratings": {journal.party: journal.ratings},
        "items_estimated_again": {},
        "remains": remains,
    }


def _cut_model(model: PartyModel, stay: Kept) -> PartyModel:
    """Return a model without the other items, unless it has lost them already."""
    if len(model.items) != len(stay):
        return model
    rows = torch.from_numpy(np.flatnonzero(stay))
    scores = None if model.item_scores is None else _cut_scores(model.item_scores, stay)
    return replace(model, items=model.items[rows], embeddings=model.embeddings[rows], item_scores=scores)


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
