"""A finished run as the start of a new training: its parameters, mapped onto the users and items of today."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.core.errors import ConfigError, RunError
from verfedgnn.core.files import make_folder, writing
from verfedgnn.core.option_names import option, resume_words
from verfedgnn.data import PartyData
from verfedgnn.data.ids import StrArray, find_positions
from verfedgnn.data.rating_drift import measure_drift
from verfedgnn.protocol.checkpoint_state import CheckpointState
from verfedgnn.protocol.party.private_start import PrivateStart
from verfedgnn.protocol.round.start_state import EarlierRows, PublicStart, kept_rows
from verfedgnn.protocol.round.user_groups import hash_arrays
from verfedgnn.runs.checkpoint import read_checkpoint
from verfedgnn.runs.checkpoint_slots import CheckpointSlots
from verfedgnn.runs.party_tables import read_party_tables, safe_names
from verfedgnn.runs.run import read_public, read_run_config, write_json
from verfedgnn.runs.run_layout import FORGET_JOURNAL, FORGET_RECORD, LISTS

_RECORD = "from.json"
"""File in a run folder that names the run it starts from."""
PUBLIC_STATE = Path("checkpoint") / "public"
"""Folder in the run of a party, or of a coordinator with workers, with the state of the public optimiser."""
_WITHOUT_CHECKPOINT = "{} has no checkpoint to start from; give a folder that a training wrote"


@dataclass(frozen=True)
class StartState:
    """The parameters of an earlier training of all parties on one machine."""

    public: PublicStart
    private: Mapping[str, PrivateStart]
    """By party; a party that is new has none."""


def read_start(run: Path, parties: Sequence[PartyData], *, lists: bool = False) -> StartState | None:
    """Return the parameters of a run, mapped onto the users and items of `parties`.

    With `lists`, they are those of its second training; None if it has none.
    """
    if lists and not (run / LISTS).is_dir():
        return None
    states = read_last_states(run / LISTS if lists else run)
    before, _ = read_party_tables(run / "parties")
    users = find_rows(parties[0].ratings.user_ids, before[0].ratings.user_ids)
    public = _public_start(states["_coordinator"], users)
    now = {party.name: party.ratings.item_ids for party in parties}
    private = {
        party.name: PrivateStart(
            states[file].load(), users, find_rows(now[party.name], party.ratings.item_ids), public
        )
        for file, party in zip(safe_names(before), before, strict=True)
        if party.name in now
    }
    return StartState(public, private)


def read_ancestor(folder: Path, config: Config) -> dict[str, Any]:
    """Return what a run records of the run in `folder`, from which it starts; raise if it cannot start from that run."""
    before = read_run_config(folder)
    if not (folder / "metrics.json").is_file():
        raise RunError(f"{folder} is not finished; finish it with {resume_words(folder)}")
    if (folder / FORGET_JOURNAL).exists():
        raise RunError(
            f"{folder} still holds what is being forgotten; finish with `verfedgnn forget {folder}`"
        )
    if config.model.form == "solved":
        raise ConfigError(
            "a training with model.form = solved starts from nothing, since it needs only tens of rounds; leave out --from"
        )
    if before.model != config.model:
        raise ConfigError(
            f"{folder} was trained with other settings of the model; use the same preset, GNN and settings of the model"
        )
    metrics = json.loads((folder / "metrics.json").read_text("utf-8"))
    kept = before.seed == config.seed and before.split == config.split
    earlier = recorded_ancestor(folder)
    found = {
        "public": metrics["public"],
        "rounds": metrics["rounds"],
        # Whether no run of the line may have been trained on a rating that this one tests.
        "same_split": kept and (earlier is None or earlier["same_split"]),
    }
    if "skellam" not in (before.gradients.mechanism, config.gradients.mechanism):
        return found
    _check_same_protection(folder, before, config, same_split=found["same_split"])
    return found | {"spent": _read_spent(metrics)}


def _check_same_protection(folder: Path, before: Config, config: Config, *, same_split: bool) -> None:
    """Raise `ConfigError` unless the releases of two trainings under preset private compose to one epsilon."""
    protection = [(each.gradients, each.training.error_clip) for each in (before, config)]
    if protection[0] != protection[1] or not same_split:
        raise ConfigError(
            f"preset private cannot start from {folder}: its noise, protection, seed or split is another one, so the two budgets "
            f"do not compose; use the same settings, or train without {option('start_from', flag='from')}"
        )


def _read_spent(metrics: dict[str, Any]) -> dict[str, int]:
    """Return how often the ratings of a private run were used, by it and by the runs before it; nothing for a coordinator."""
    report = metrics.get("privacy")
    if report is None:
        return {}
    return {"gradients": report["gradients"]["releases"], "validations": report["validation"]["releases"]}


def count_spent(ancestor: dict[str, Any] | None) -> tuple[int, int]:
    """Return the gradients and validations that a line of private runs released before; a rating may be in all of them."""
    spent = {} if ancestor is None else ancestor.get("spent", {})
    return spent.get("gradients", 0), spent.get("validations", 0)


def measure_run_drift(folder: Path, parties: Sequence[PartyData]) -> dict[str, Any]:
    """Return how far the ratings of `parties` are from those of the run in `folder`, for parties that it has."""
    before = {party.name: party.ratings for party in read_party_tables(folder / "parties")[0]}
    drift = {
        party.name: measure_drift(before[party.name], party.ratings)
        for party in parties
        if party.name in before
    }
    return {"drift": drift}


def write_ancestor(folder: Path, ancestor: dict[str, Any]) -> None:
    """Record in a new run folder which run it starts from."""
    with writing(folder):
        make_folder(folder)
        write_json(folder / _RECORD, ancestor)


def recorded_ancestor(folder: Path) -> dict[str, Any] | None:
    """Return what `write_ancestor` recorded; None for a run that started from nothing."""
    file = folder / _RECORD
    return json.loads(file.read_text("utf-8")) if file.is_file() else None


def claim_ancestor(folder: Path, start_from: Path | None, config: Config) -> None:
    """Record the run that a member of a federation starts from; raise if its training was begun with another start."""
    given = None if start_from is None else read_ancestor(start_from, config)
    if (folder / "checkpoint").is_dir():
        recorded = recorded_ancestor(folder)
        if recorded is not None:
            recorded.pop("forgotten", None)
        if given != recorded:
            raise RunError(
                f"{folder} was begun with another --from, or without; give the same command as before"
            )
    elif given is not None:
        write_ancestor(folder, given)
    else:
        (folder / _RECORD).unlink(missing_ok=True)


def read_last_states(folder: Path) -> dict[str, CheckpointState]:
    """Return the states after the last round of a training on one machine."""
    found = read_checkpoint(folder / "checkpoint")
    if found is None:
        raise RunError(_WITHOUT_CHECKPOINT.format(folder))
    return found[0]


def read_public_start(folder: Path) -> PublicStart | None:
    """Return the start of a federation's coordinator from its earlier training; None if that did not take place.

    Users have kept their rows, and new users follow.
    """
    found = CheckpointSlots(folder / "checkpoint").read()
    if found is None:
        return None
    state = found.state
    whole = CheckpointSlots(folder / PUBLIC_STATE).read()
    if whole is not None:  # each worker's checkpoint holds a part of the users
        arrays = {"best": read_public(folder), "accumulator": whole.state.arrays["accumulator"]}
        state = CheckpointState(arrays, state.values)
    return _public_start(state)


def read_party_start(run: Path, party: PartyData, *, lists: bool = False) -> PrivateStart | None:
    """Return the start of one party of a federation from its own earlier run; users have kept their rows.

    With `lists`, it is that of the second training; None if there was none.
    """
    if lists and not (run / LISTS).is_dir():
        return None
    folder = run / LISTS if lists else run
    found = CheckpointSlots(folder / "checkpoint" / "party").read()
    public = CheckpointSlots(folder / PUBLIC_STATE).read()
    if found is None or public is None:
        raise RunError(_WITHOUT_CHECKPOINT.format(folder))
    (before,), _ = read_party_tables(run / "parties")
    users = before.ratings.n_users
    kept = torch.from_numpy(read_public(folder))
    sums = torch.from_numpy(public.state.arrays["accumulator"])
    forgotten = read_forgotten(run)
    rows = kept_rows(party.ratings.n_users, users)
    rows[list(forgotten)] = -1
    return PrivateStart(
        found.state.load(),
        rows,
        find_rows(party.ratings.item_ids, before.ratings.item_ids),
        PublicStart(kept, sums, users, recorded=public.values["digest"]),
        forgotten,
    )


def write_public_state(folder: Path, round: int, public: Tensor, accumulator: NDArray[np.float32]) -> None:
    """Keep what a member's next training needs to start from this one, besides the public parameters of its model."""
    state = CheckpointState({"accumulator": accumulator})
    digest = hash_arrays([public.cpu().numpy(), accumulator]).hex()
    CheckpointSlots(folder / PUBLIC_STATE).write(round, state, {"digest": digest})


def read_forgotten(run: Path) -> tuple[int, ...]:
    """Return the rows of the users who were forgotten in a run."""
    file = run / FORGET_RECORD
    entries = json.loads(file.read_text("utf-8")) if file.is_file() else []
    return tuple(sorted({row for entry in entries for row in entry["rows"]}))


def record_forgotten(folder: Path, rows: Sequence[int]) -> None:
    """Record in a run that starts from another one which rows some party had forgotten and the start has reset."""
    ancestor = recorded_ancestor(folder)
    if ancestor is not None and rows:
        write_ancestor(folder, ancestor | {"forgotten": list(rows)})


def _public_start(state: CheckpointState, rows: EarlierRows | None = None) -> PublicStart:
    hellos = [json.loads(hello) for hello in state.values["hellos"]]
    parameters, accumulator = (torch.from_numpy(state.arrays[name]) for name in ("best", "accumulator"))
    members = tuple(hello["party"] for hello in hellos)
    return PublicStart(parameters, accumulator, hellos[0]["users"], rows, members=members)


def find_rows(now: StrArray, before: StrArray) -> EarlierRows:
    """Return the earlier row of each id, -1 for new ones and for users of other parties, whose id is empty."""
    rows = find_positions(now, before)
    rows[now == ""] = -1
    return np.asarray(rows, np.int64)
