"""Forgetting users and items: their ratings leave a run folder, and the model is repaired without them.

1. The journal names the rows of what is forgotten. Copies that nobody needs after a training are deleted: last releases, results
   before the gate, checkpoints, reports.
2. Items that were added after the training lose the users' ratings, and their vectors are estimated again. Forgotten ones go.
3. In every model, forgotten users get the vector of the average user, and the items that they rated are estimated again from the other
   users' ratings (`new_items.py`). EASE loses the users' items. Rows of forgotten items go from the models of their party; users'
   vectors stay, since they are public and only a training can change them.
4. The tables lose the ratings and the ids.
5. The record says what was done and what remains, and the journal is removed.

Each step can be repeated: a file that has lost items already is recognised by its number of items. If the process is killed, the next
call finishes the journal first. Files are replaced, and no copy is kept.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from verfedgnn.config import load_config
from verfedgnn.core.array_files import read_arrays, write_arrays
from verfedgnn.core.errors import RunError
from verfedgnn.core.files import lock_folder, parsing, writing
from verfedgnn.core.item_item import ItemScores
from verfedgnn.data import TRAIN, PartyData
from verfedgnn.data.ids import find_positions
from verfedgnn.data.ratings import format_count
from verfedgnn.gnn.model import Model
from verfedgnn.runs.added_items import added_file, lock_added, read_added, rewrite_added
from verfedgnn.runs.forget_record import append_record, hash_ids, note_forgotten
from verfedgnn.runs.party_model import PartyModel, read_model, write_model
from verfedgnn.runs.party_tables import read_party_tables, safe_names, write_party_tables
from verfedgnn.runs.run import Run, read_run_config, write_json
from verfedgnn.runs.run_folder import FINAL, FORGET_JOURNAL, LAST_RELEASE, REPORT, TRAININGS
from verfedgnn.upkeep.new_items import NewItems, absorb_item_scores, fit_item_prior, user_items

Rows = NDArray[np.int64]
Tables = tuple[list[PartyData], list[NDArray[np.int8]]]
UNTIL = "until the next training"
_FEDERATED = "federation.txt"
"""File in the run folder of one party of a federation."""


@dataclass(frozen=True)
class Journal:
    """What is being forgotten, users without ids or items of one party; it is removed at the end."""

    users: list[int]
    """Rows of the users to forget, in every table of the run; none if items are forgotten."""
    items: dict[str, list[int]]
    """Rows of the items to estimate again, by the file name of the party; of those to remove, if items are forgotten."""
    ratings: dict[str, int]
    """Number of ratings that go, by party."""
    who: list[str]
    """Keyed hashes of the ids of users, or of items."""
    ids: Sequence[str] = ()
    """Ids of the items to remove, of the training and added later; none if users are forgotten."""
    size: int = 0
    """Number of items of the party in training, before some are removed."""


def forget(
    folder: Path, users: Sequence[str] = (), items: Sequence[str] = (), party: str | None = None
) -> dict[str, Any] | None:
    """Remove users, or items of one party, from the finished run in `folder`; return the last record, None without one.

    An interrupted request is finished first. `party` is needed if several parties have items with these ids.
    """
    read_run_config(folder)  # raises if there is no run, before a lock creates the folder
    if not (folder / "metrics.json").is_file():
        raise RunError(
            f"{folder} is not finished and still holds every user; finish its training and forget then, or delete the folder"
        )
    folder = folder.resolve()  # a link may be switched meanwhile
    with lock_folder(folder):
        record = _finish(folder)
        if users or items:
            journal = _plan_users(folder, users) if users else _plan_items(folder, items, party)
            with writing(folder):
                write_json(folder / FORGET_JOURNAL, asdict(journal))
            record = _finish(folder)
    return record


def _plan_users(folder: Path, users: Sequence[str]) -> Journal:
    parties, _ = read_party_tables(folder / "parties")
    wanted = np.array(sorted(set(users)), np.str_)
    rows = find_positions(wanted, parties[0].ratings.user_ids)
    rows[wanted == ""] = -1
    if (rows < 0).any():
        missing = format_count(int((rows < 0).sum()), "user")
        raise RunError(
            f"{missing} not in {folder}; check the ids. Users who were forgotten before are not there either"
        )
    if len(rows) == len(parties[0].ratings.known_users):
        raise RunError(f"{folder} has no other users; delete the folder instead")
    items, ratings = {}, {}
    for file, party in zip(safe_names(parties), parties, strict=True):
        mine = np.isin(party.ratings.user, rows)
        items[file] = np.unique(party.ratings.item[mine]).tolist()
        ratings[party.name] = int(mine.sum())
    return Journal(np.unique(rows).tolist(), items, ratings, note_forgotten(folder, wanted))


def _plan_items(folder: Path, items: Sequence[str], party: str | None) -> Journal:
    """Return what has to be removed; raise `RunError` if an item is unknown, or if several parties have it."""
    parties, _ = read_party_tables(folder / "parties")
    wanted = np.array(sorted(set(items)), dtype=np.str_)
    found: dict[str, Journal] = {}
    missing = len(wanted)
    for file, each in zip(safe_names(parties), parties, strict=True):
        if party not in (None, each.name):
            continue
        rows = find_positions(wanted, each.ratings.item_ids)
        added = read_added(added_file(folder, file))
        unknown = (rows < 0) & ~np.isin(wanted, list(added))
        missing = min(missing, int(unknown.sum()))
        if not unknown.any():
            rows = np.sort(rows[rows >= 0])
            if len(rows) == each.ratings.n_items:
                raise RunError(f"{folder} has no other items of {each.name}; train again without them")
            later = sum(len(added[item].ratings) for item in wanted.tolist() if item in added)
            count = {each.name: int(np.isin(each.ratings.item, rows).sum()) + later}
            found[each.name] = Journal(
                [], {file: rows.tolist()}, count, [], wanted.tolist(), each.ratings.n_items
            )
    if len(found) > 1:
        raise RunError(f"several parties have these items ({', '.join(found)}); choose one with --party")
    if not found:
        where = folder if party is None else f"party '{party}' of {folder}"
        raise RunError(f"{format_count(missing, 'item')} not in {where}; check the ids, and give one party's")
    return replace(*found.values(), who=hash_ids(folder, wanted.tolist()))


def _finish(folder: Path) -> dict[str, Any] | None:
    """Carry out the journal in a locked folder, which may have been begun before."""
    file = folder / FORGET_JOURNAL
    if not file.is_file():
        return None
    with parsing(str(file), "remove it, then forget the users again"):
        journal = Journal(**json.loads(file.read_text("utf-8")))
        parties, parts = read_party_tables(folder / "parties")
        parties[0].ratings.user_ids[np.array(journal.users, np.int64)]  # raises if there is no such row
        for name, party in zip(safe_names(parties), parties, strict=True):
            np.empty(journal.size or party.ratings.n_items)[np.array(journal.items.get(name, []), np.int64)]
    with writing(folder):
        _remove_copies(folder)
        _forget_added(folder, journal, parties)
        parties, parts = _cut_tables(journal, parties, parts)
        for name in TRAININGS:
            place = folder / name
            if (place / "metrics.json").is_file():
                final = place.is_relative_to(folder / FINAL)
                used = [np.full(len(part), TRAIN, np.int8) for part in parts] if final else parts
                _rewrite_models(place, journal, parties, used)
                if journal.users:
                    _reset_public(place, journal.users, parties[0].ratings.n_users)
        write_party_tables(folder / "parties", parties, parts)
        record = append_record(folder, _describe(journal, (folder / _FEDERATED).is_file()))
        file.unlink()
    return record


def _describe(journal: Journal, federated: bool) -> dict[str, Any]:
    """Return the entry of the record: what was done, and what remains."""
    entry = {"users": journal.who, "ratings": journal.ratings}
    if journal.ids:
        remains = [f"the users' vectors were trained with the ratings of these items, {UNTIL}"]
        shared = "sums that the other members received before; they did not learn which items there are"
        entry |= {"users": [], "items": journal.who, "items_estimated_again": {}}
        return entry | {"remains": remains + [shared] * federated}
    remains = [
        f"the other users' vectors were trained together with these users, {UNTIL}",
        f"weights between items (EASE) and the mixture of the gate are sums over all users, {UNTIL}",
        f"the model shows which items were estimated again, and so which items these users rated, {UNTIL}",
        "older run folders, and your own files and databases, from which the next training reads",
    ]
    if federated:
        remains = [
            "the users' rows of the public parameters in the run folders of the other members",
            "sums and releases that the other members received before, and the other members' own ratings",
            *remains,
        ]
    again = {file: len(rows) for file, rows in journal.items.items()}
    return entry | {"items_estimated_again": again, "remains": remains}


def _remove_copies(folder: Path) -> None:
    """Remove what holds ratings or rows of users and is not needed once a training has finished.

    These are reports that name users, a party's last releases, checkpoints, and what a kill left of a file.
    """
    copies = [folder / REPORT]
    for name in TRAININGS:
        place = folder / name
        skipped = name and not (place / "metrics.json").is_file()
        copies += [place] if skipped else [place / LAST_RELEASE, place / "checkpoint"]
    with lock_added(folder):  # nobody else writes to a run folder that is locked
        for each in (*copies, *folder.rglob(".*.part")):
            if each.is_dir():
                shutil.rmtree(each)
            else:
                each.unlink(missing_ok=True)


def _forget_added(folder: Path, journal: Journal, parties: Sequence[PartyData]) -> None:
    """Remove what is forgotten from the items that were added after the training, and estimate items again that lose ratings."""
    users = set(parties[0].ratings.user_ids[journal.users].tolist()) - {""}
    with lock_added(folder):
        for file, party in zip(safe_names(parties), parties, strict=True):
            added = added_file(folder, file)
            removed = journal.ids if file in journal.items else ()
            items = [item for name, item in read_added(added).items() if name not in removed]
            if any(users & item.ratings.keys() for item in items):
                after = [
                    replace(item, ratings={u: given for u, given in item.ratings.items() if u not in users})
                    for item in items
                ]
                items = NewItems(folder, Run.load(folder, added=False), party.name).estimate_all(after)
            rewrite_added(added, items)  # also without lines that could not be read


def _cut_tables(journal: Journal, parties: list[PartyData], parts: list[NDArray[np.int8]]) -> Tables:
    """Return the tables without what is forgotten."""
    ids = parties[0].ratings.user_ids.copy()
    ids[journal.users] = ""
    tables, kept = [], []
    for file, party, part in zip(safe_names(parties), parties, parts, strict=True):
        table = party.ratings
        stay = ~np.isin(table.user, journal.users)
        if journal.ids and file in journal.items and table.n_items == journal.size:
            items = _staying(journal, file)
            stay = items[table.item]
            table = table.select_items(items)
        else:
            table = table.take(stay)
        tables.append(PartyData(party.name, replace(table, user_ids=ids)))
        kept.append(part[stay])
    return tables, kept


def _staying(journal: Journal, file: str) -> NDArray[np.bool_]:
    stay = np.ones(journal.size, bool)
    stay[journal.items[file]] = False
    return stay


def _rewrite_models(
    place: Path, journal: Journal, parties: Sequence[PartyData], parts: Sequence[NDArray[np.int8]]
) -> None:
    """Replace the parties' models of a training, federated and alone, by changed ones."""
    ranks = load_config(place / "config.toml").ranks
    for file, party, part in zip(safe_names(parties), parties, parts, strict=True):
        for path in (place / "model" / f"{file}.safetensors", place / "model/alone" / f"{file}.safetensors"):
            if file in journal.items and path.is_file():
                model = read_model(path)
                if journal.ids:
                    changed = _cut_model(model, _staying(journal, file))
                else:
                    users, items = np.array(journal.users), np.array(journal.items[file], np.int64)
                    changed = _repair(model, party, part, users, items, ranks=ranks)
                write_model(path, changed)


def _repair(
    model: PartyModel, party: PartyData, part: NDArray[np.int8], rows: Rows, items: Rows, *, ranks: bool
) -> PartyModel:
    """Return a model in which users are average and items are estimated from the remaining ratings."""
    table = party.ratings
    users = model.users.clone()
    others = np.setdiff1d(table.known_users, rows)
    users[torch.from_numpy(rows)] = users[torch.from_numpy(others)].mean(0)
    scores = model.item_scores
    if scores is not None:
        history = user_items(scores, len(users))
        history.data[np.isin(np.repeat(np.arange(len(users)), np.diff(history.indptr)), rows)] = 0
        history.eliminate_zeros()
        scores = _with_history(scores, history)
    model = replace(model, vectors=users, item_scores=scores)
    prior = fit_item_prior(model, table, part, ranks=ranks)
    absorbed = absorb_item_scores(model) - model.items.double().numpy()
    vectors = model.items.clone()
    train = np.flatnonzero(part == TRAIN)
    for item in items:
        mine = train[table.item[train] == item]
        found = prior.estimate(table.user[mine].astype(np.int64), table.rating[mine], exposure=1.0)
        vectors[item] = torch.from_numpy((found - absorbed[item]).astype(np.float32))
    # Embeddings follow by the regression on vectors that holds for other items. As they were, they would be a trace of the ratings.
    rest = np.setdiff1d(np.arange(len(vectors)), items)
    slopes = np.linalg.pinv(vectors[rest].numpy()) @ model.embeddings[rest].numpy()
    embeddings = model.embeddings.clone()
    embeddings[items] = vectors[items] @ torch.from_numpy(slopes)
    return replace(model, items=vectors, embeddings=embeddings)


def _cut_model(model: PartyModel, stay: NDArray[np.bool_]) -> PartyModel:
    """Return a model without the other items, unless it has lost them already."""
    if len(model.items) != len(stay):
        return model
    rows = torch.from_numpy(np.flatnonzero(stay))
    scores = model.item_scores
    if scores is not None:
        included = stay[scores.kept.numpy()]
        places = torch.from_numpy(np.flatnonzero(included))
        kept = torch.from_numpy((np.cumsum(stay) - 1)[scores.kept.numpy()[included]])
        history = user_items(scores, len(model.users))[:, included]
        scores = replace(scores, weights=scores.weights[places][:, places], kept=kept, items=len(rows))
        scores = _with_history(scores, history)
    return replace(model, items=model.items[rows], embeddings=model.embeddings[rows], item_scores=scores)


def _with_history(scores: ItemScores, history: Any) -> ItemScores:
    """Return the weights between items with other items of the users (N, k)."""
    pointers, places = torch.from_numpy(history.indptr).long(), torch.from_numpy(history.indices).int()
    return replace(scores, pointers=pointers, history=places)


def _reset_public(place: Path, rows: Sequence[int], users: int) -> None:
    """Give these users the rows of the average user in the public parameters of a training."""
    file = place / "model" / "_public.safetensors"
    (flat,) = read_arrays(file).values()
    if flat.size == 1:  # lists that each party orders by its own models: nothing was shared
        return
    model = Model(load_config(place / "config.toml").model, users)
    changed = torch.from_numpy(flat.copy())
    stay = np.setdiff1d(np.arange(users), rows)
    for name, view in model.views(changed).items():
        if name in model.per_user:
            view[rows] = view[stay].mean(0)
    write_arrays(file, {"public": changed.numpy()})
