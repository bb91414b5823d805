"""Forgetting users: their ratings leave a run folder, and the model is repaired without them.

1. The journal names the rows of the users. Copies that nobody needs after a training are deleted: last releases, results
   before the gate, checkpoints, reports.
2. Items that were added after the training lose the users' ratings, and their vectors are estimated again.
3. In every model, forgotten users get the vector of the average user, and the items that they rated are estimated again from the other
   users' ratings (`new_items.py`). EASE loses the users' items.
4. The tables lose the ratings and the ids.
5. The record says what was done and what remains, and the journal is removed.

Each step can be repeated: if the process is killed, the next call finishes the journal first. Files are replaced, and no copy is kept.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter

from verfedgnn.config import load_config
from verfedgnn.core.array_files import ArrayFile, read_arrays, write_arrays
from verfedgnn.core.errors import RunError
from verfedgnn.core.files import lock_folder, parsing, writing
from verfedgnn.data import TRAIN, PartyData
from verfedgnn.data.ids import find_positions, spell
from verfedgnn.data.ratings import format_count
from verfedgnn.gnn.model import Model
from verfedgnn.runs.added_items import added_file, lock_added, read_added, rewrite_added
from verfedgnn.runs.forget_record import append_record, note_forgotten
from verfedgnn.runs.party_model import PartyModel, read_model, write_model
from verfedgnn.runs.party_tables import read_party_tables, safe_names, write_party_tables
from verfedgnn.runs.run import Run, read_run_config, write_json
from verfedgnn.runs.run_folder import FINAL, FORGET_JOURNAL, LAST_RELEASE, REPORT, TRAININGS
from verfedgnn.upkeep.new_items import NewItems, absorb_item_scores, fit_item_prior, user_items

Rows = NDArray[np.int64]
Row = Annotated[int, Field(ge=0)]
Tables = tuple[list[PartyData], list[NDArray[np.int8]]]
UNTIL = "until the next training"
_FEDERATED = "federation.txt"
"""File in the run folder of one party of a federation."""


@dataclass(frozen=True)
class Journal:
    """Who is being forgotten, without ids; it is removed at the end."""

    users: Annotated[list[Row], Field(min_length=1)]
    """Rows of the users, in every table of the run."""
    items: dict[str, list[Row]]
    """Rows of the items to estimate again, by the file name of the party."""
    ratings: dict[str, int]
    """Number of ratings that go, by party."""
    who: Annotated[list[str], Field(min_length=1)]
    """Keyed hashes of the users' ids."""


def forget(folder: Path, users: Sequence[str] = ()) -> dict[str, Any] | None:
    """Remove users from the finished run in `folder`; return the last record, None without one.

    An interrupted request is finished first.
    """
    read_run_config(folder)  # raises if there is no run, before a lock creates the folder
    if not (folder / "metrics.json").is_file():
        raise RunError(
            f"{folder} is not finished and still holds every user; finish its training and forget then, or delete the folder"
        )
    given, folder = folder, folder.resolve()  # a link may be switched meanwhile
    with lock_folder(folder):
        if given.resolve() != folder:  # another run was promoted, which now keeps the users
            raise RunError(f"{given} leads to {given.resolve().name} by now; repeat the command")
        with parsing(f"a model of {folder}", "restore the folder or train again"):
            _ = [ArrayFile(path) for path in folder.rglob("model/**/*.safetensors")]  # checks sizes only
        record = _finish(folder)
        if users:
            journal = _plan(folder, users)
            with writing(folder):
                write_json(folder / FORGET_JOURNAL, asdict(journal))
            record = _finish(folder)
    return record


def _plan(folder: Path, users: Sequence[str]) -> Journal:
    parties, _ = read_party_tables(folder / "parties")
    wanted = np.array(sorted(set(users)), np.str_)
    ids = parties[0].ratings.user_ids
    rows = find_positions(wanted, ids)
    for way in {party.ratings.ids for party in parties if party.ratings.ids}:  # ids as the data has them
        rows = np.where(rows < 0, find_positions(spell(wanted, way), ids), rows)
    rows[ids[rows] == ""] = -1
    if (rows < 0).any():
        missing = format_count(int((rows < 0).sum()), "user")
        raise RunError(
            f"{missing} not in {folder}; check the ids. Users who were forgotten before are not there either"
        )
    rows = np.unique(rows)
    if len(rows) == len(parties[0].ratings.known_users):
        raise RunError(f"{folder} has no other users; delete the folder instead")
    items, ratings = {}, {}
    for file, party in zip(safe_names(parties), parties, strict=True):
        mine = np.isin(party.ratings.user, rows)
        items[file] = np.unique(party.ratings.item[mine]).tolist()
        ratings[party.name] = int(mine.sum())
    who = note_forgotten(folder, ids[rows], np.delete(ids, rows))
    return Journal(rows.tolist(), items, ratings, who)


def _finish(folder: Path) -> dict[str, Any] | None:
    """Carry out the journal in a locked folder, which may have been begun before."""
    file = folder / FORGET_JOURNAL
    if not file.is_file():
        return None
    with parsing(str(file), "remove it, then forget the users again"):
        journal = TypeAdapter(Journal).validate_json(file.read_bytes())
        parties, parts = read_party_tables(folder / "parties")
        users = parties[0].ratings
        users.user_ids[np.array(journal.users, np.int64)]  # raises if there is no such row
        if not len(np.setdiff1d(users.known_users, journal.users)):
            raise ValueError("there are no other users")
        for name, party in zip(safe_names(parties), parties, strict=True):
            np.empty(party.ratings.n_items)[np.array(journal.items.get(name, []), np.int64)]
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
                _reset_public(place, journal.users, parties[0].ratings.n_users)
        write_party_tables(folder / "parties", parties, parts)
        record = append_record(folder, _describe(journal, (folder / _FEDERATED).is_file()))
        file.unlink()
    return record


def _describe(journal: Journal, federated: bool) -> dict[str, Any]:
    """Return the entry of the record: what was done, and what remains."""
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
    about = {"users": journal.who, "ratings": journal.ratings}
    return about | {"items_estimated_again": again, "remains": remains}


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
    """Remove the users' ratings of items that were added after the training, and estimate these items again."""
    users = set(parties[0].ratings.user_ids[journal.users].tolist()) - {""}
    with lock_added(folder):
        for file, party in zip(safe_names(parties), parties, strict=True):
            added = added_file(folder, file)
            items = list(read_added(added).values())
            if any(users & item.ratings.keys() for item in items):
                after = [
                    replace(item, ratings={u: given for u, given in item.ratings.items() if u not in users})
                    for item in items
                ]
                items = NewItems(folder, Run.load(folder, added=False), party.name).estimate_all(after)
            rewrite_added(added, items)  # also without lines that could not be read


def _cut_tables(journal: Journal, parties: list[PartyData], parts: list[NDArray[np.int8]]) -> Tables:
    """Return the tables without the users."""
    ids = parties[0].ratings.user_ids.copy()
    ids[journal.users] = ""
    tables, kept = [], []
    for party, part in zip(parties, parts, strict=True):
        stay = ~np.isin(party.ratings.user, journal.users)
        tables.append(PartyData(party.name, replace(party.ratings.take(stay), user_ids=ids)))
        kept.append(part[stay])
    return tables, kept


def _rewrite_models(
    place: Path, journal: Journal, parties: Sequence[PartyData], parts: Sequence[NDArray[np.int8]]
) -> None:
    """Replace the parties' models of a training, federated and alone, by changed ones."""
    ranks = load_config(place / "config.toml").ranks
    for file, party, part in zip(safe_names(parties), parties, parts, strict=True):
        for path in (place / "model" / f"{file}.safetensors", place / "model/alone" / f"{file}.safetensors"):
            if file in journal.items and path.is_file():
                users, items = np.array(journal.users), np.array(journal.items[file], np.int64)
                write_model(path, _repair(read_model(path), party, part, users, items, ranks=ranks))


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
        pointers, places = torch.from_numpy(history.indptr).long(), torch.from_numpy(history.indices).int()
        scores = replace(scores, pointers=pointers, history=places)
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
