"""The run before a training at the same organisation. Nothing of it is trained on: it is compared with the data of today, and recorded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from verfedgnn.core.errors import RunError
from verfedgnn.core.files import make_folder, writing
from verfedgnn.core.option_names import option
from verfedgnn.data import PartyData
from verfedgnn.data.ratings import measure_drift
from verfedgnn.runs.party_tables import read_party_tables
from verfedgnn.runs.run import read_run_config, write_json
from verfedgnn.runs.run_folder import AFTER

MOSTLY_NEW = 0.5
"""Share of a party's items that are new since the run before, from which on its file may be a wrong one."""


def read_before(folder: Path, parties: Sequence[PartyData]) -> dict[str, Any]:
    """Return what a run records of the run before it, in `folder`: its public parameters, and the drift of each party since."""
    read_run_config(folder)
    if not (folder / "metrics.json").is_file():
        raise RunError(f"{folder} is not finished; name a finished run, or leave out {option('after')}")
    tables = {party.name: party.ratings for party in read_party_tables(folder / "parties")[0]}
    drift = {
        party.name: measure_drift(tables[party.name], party.ratings)
        for party in parties
        if party.name in tables
    }
    metrics = json.loads((folder / "metrics.json").read_text("utf-8"))
    return {"public": metrics["public"], "drift": drift}


def suspect_files(folder: Path, before: dict[str, Any]) -> list[str]:
    """Return which party's file may be a wrong one, by what `read_before` found in `folder`."""
    return [
        f"{100 * drift['unknown_items']:.0f} % of {name}'s items are new since {folder}; is this the right file?"
        for name, drift in before["drift"].items()
        if drift["unknown_items"] > MOSTLY_NEW
    ]


def write_before(folder: Path, before: dict[str, Any]) -> None:
    """Record the run before in a new run folder."""
    with writing(folder):
        make_folder(folder)
        write_json(folder / AFTER, before)


def recorded_before(folder: Path) -> dict[str, Any] | None:
    """Return what `write_before` recorded; None if no run was named."""
    file = folder / AFTER
    return json.loads(file.read_text("utf-8")) if file.is_file() else None
