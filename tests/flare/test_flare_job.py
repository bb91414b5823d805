"""One job in FLARE's simulator equals the local runtime to the bit, and it holds neither code nor data."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: it is in the extra flare")

import psutil
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer

import verfedgnn as vf
from verfedgnn.core.errors import ConfigError
from verfedgnn.federation import roster
from verfedgnn.runs.nights import HISTORY, Night, read_nights
from verfedgnn_flare.job_site import (
    ALLOWED_CLASSES,
    SITE_FILE,
    allow_classes,
    prepare_site,
    read_site_settings,
)
from warm_python import warm_python

RUN = """
import sys
from nvflare.recipe import SimEnv
import verfedgnn_flare
if __name__ == "__main__":
    home, root, *sites = sys.argv[1:]
    recipe = verfedgnn_flare.recipe(home)
    recipe.run(SimEnv(clients=sites, workspace_root=root))
"""
SETTINGS = {"batch": 0, "epochs": 6, "evaluate_every": 3, "masking": True, "unprotected": ["noise"]}


def write_ratings(file: Path, party: vf.PartyData) -> None:
    table = party.ratings
    with file.open("w", newline="") as lines:
        writer = csv.writer(lines)
        writer.writerow(["user", "item", "rating"])
        writer.writerows(
            zip(table.user_ids[table.user], table.item_ids[table.item], table.rating, strict=True)
        )


def federate(folder: Path, parties: list[vf.PartyData]) -> Path:
    """Create a federation whose parties align nothing, each in a folder of its own; return the coordinator's folder."""
    home = folder / "server"
    roster.create_federation(
        home,
        preset="paper",
        model=None,
        config_file=None,
        overrides=SETTINGS,
        name="trial",
        address="127.0.0.1:1",
        alignment="none",
        min_parties=len(parties),
    )
    for party in parties:
        _, request, _ = roster.request_membership(party.name, folder / party.name)
        roster.admit_parties(home, [request], replace=False, confirm=lambda shown: None)
    for party in parties:
        shutil.copy(home / "federation.toml", folder / party.name)
        write_ratings(folder / party.name / "ratings.csv", party)
    return home


@pytest.fixture(scope="module")
def parties(small_parties: list[vf.PartyData]) -> list[vf.PartyData]:
    """Two parties: each is a process of the simulator."""
    return small_parties[:2]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory, parties: list[vf.PartyData]) -> Path:
    """A folder in which one job has run in the simulator."""
    folder = tmp_path_factory.mktemp("flare")
    home = federate(folder, parties)
    workspace = folder / "simulation" / "trial"
    (workspace / "local").mkdir(parents=True)
    place = str(folder / "{site}")
    prepare_site(workspace, {"federation": place, "ratings": f"{place}/ratings.csv"})
    log = folder / "log.txt"
    simulate(folder, parties, log)
    assert (home / "run" / "metrics.json").is_file(), log.read_text()[-3000:]
    return folder


def simulate(folder: Path, parties: list[vf.PartyData], log: Path) -> None:
    """Run the job in the simulator, again if that lost a race for the port of one of its processes."""
    if not run_simulator(folder, parties, log) and "Communication error with client" in log.read_text():
        run_simulator(folder, parties, log)


def run_simulator(folder: Path, parties: list[vf.PartyData], log: Path) -> bool:
    """Return whether the job succeeded; none of its processes survives."""
    places = [str(folder / "server"), str(folder / "simulation")]
    command = [warm_python(), "-c", RUN, *places, *(party.name for party in parties)]
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            deadline = time.monotonic() + 300
            while process.poll() is None and "Communication error with client" not in log.read_text():
                assert time.monotonic() < deadline, log.read_text()[-3000:]
                time.sleep(0.1)
            return process.poll() == 0
        finally:
            for child in (
                psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
            ):
                child.kill()
            process.kill()


def test_a_job_in_the_simulator_equals_the_local_runtime(
    simulated: Path, parties: list[vf.PartyData]
) -> None:
    local = vf.train(parties, vf.Config.preset("paper", **SETTINGS))  # type: ignore[arg-type]
    for party, model in zip(parties, local.models, strict=True):
        run = vf.Run.load(simulated / party.name / "run")
        assert torch.equal(run.public, local.public)
        for key, values in run.models[0].arrays().items():
            assert torch.equal(values, model.arrays()[key]), key
        assert run.recommend(str(party.ratings.user_ids[0]), 3)
    status = json.loads((simulated / "server" / "run" / "status.json").read_text())
    assert status["state"] == "finished"


def test_a_job_a_night_is_judged_and_recorded(simulated: Path, parties: list[vf.PartyData]) -> None:
    """Only the settings of the sites change: the run of the first job is yesterday's night of each site."""
    names = [party.name for party in parties]
    for name in names:
        nights = simulated / name / "nights"
        nights.mkdir()
        (nights / "2020-01-01").symlink_to(simulated / name / "run")
        (nights / "current").symlink_to("2020-01-01")
        yesterday = Night("2020-01-01", "promoted", "", "2020-01-01T02:30:00+00:00", 60.0, "")
        (nights / HISTORY).write_text(json.dumps(asdict(yesterday)) + "\n")
    place = str(simulated / "{site}")
    settings = {"federation": place, "ratings": f"{place}/ratings.csv", "nights": f"{place}/nights"}
    prepare_site(simulated / "simulation" / "trial", settings)
    log = simulated / "log-2.txt"
    simulate(simulated, parties, log)
    (night,) = read_nights(simulated / "server" / "nights")
    assert night.result == "trained", (night, log.read_text()[-3000:])
    for name in names:
        nights = simulated / name / "nights"
        tonight = read_nights(nights)[-1]
        assert (tonight.night, tonight.result) == (night.night, "promoted"), tonight
        assert (nights / "current").resolve() == nights / tonight.night


def test_logs_of_a_site_do_not_show_its_own_error(simulated: Path, parties: list[vf.PartyData]) -> None:
    """A job can stream logs to the server, so what a party keeps to itself is in none of them."""
    for party in parties:
        logs = [*(simulated / "simulation" / "trial" / party.name).rglob("log*")]
        text = "".join(log.read_text("utf-8") for log in logs if log.is_file())
        assert "validated" in text
        assert "own_valid_error" not in text


def test_a_job_holds_neither_code_nor_data(
    simulated: Path, tmp_path: Path, command: Callable[..., tuple[int, str, str]]
) -> None:
    code, out, _ = command("flare", "job", "--federation", simulated / "server", "--out", tmp_path, "--json")
    assert code == 0
    job = Path(json.loads(out)["job"])
    files = [path for path in job.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".json"}
    text = "".join(path.read_text("utf-8") for path in files)
    assert "ratings" not in text
    assert str(simulated) not in text
    classes = {part for part in text.split('"') if part.startswith(("verfedgnn.", "verfedgnn_"))}
    assert classes == set(ALLOWED_CLASSES)
    assert json.loads((job / "meta.json").read_text())["min_clients"] == 2


def test_a_site_must_allow_the_two_classes(tmp_path: Path) -> None:
    def authorize(resources: dict[str, Any]) -> None:
        file = tmp_path / "resources.json"
        file.write_text(json.dumps(resources))

        class Workspace:
            def get_resources_file_path(self) -> str:
                return str(file)

        for name in ALLOWED_CLASSES:
            ComponentPathAuthorizer().authorize_component_config({"path": name}, workspace=Workspace())

    with pytest.raises(UnsafeComponentError, match="not in allow_list"):
        authorize({"class_allow_list": ["nvflare.app_common.workflows.fedavg.FedAvg"]})
    resources: dict[str, Any] = {}
    allow_classes(resources)
    allow_classes(resources)
    assert len(resources["class_allow_list"]) == len(set(resources["class_allow_list"])), "added once"
    authorize(resources)


def test_preparing_a_site_keeps_its_resources(
    tmp_path: Path, command: Callable[..., tuple[int, str, str]]
) -> None:
    local = tmp_path / "local"
    local.mkdir()
    default = {"format_version": 2, "components": [{"id": "mine"}], "class_allow_list": ["my.own.Class"]}
    (local / "resources.json.default").write_text(json.dumps(default))
    words = ["flare", "site", tmp_path, "--federation", "fed", "--ratings", "r.csv", "--read", "scale=1,5"]
    assert command(*words)[0] == 0
    resources = json.loads((local / "resources.json").read_text())
    assert resources["components"] == default["components"]
    assert resources["class_allow_list"] == ["my.own.Class", *ALLOWED_CLASSES]
    settings = read_site_settings(local, "books")
    assert settings.reading == [("read", "scale=1,5")]
    assert settings.federation.is_absolute()
    assert command(*words, "--out", "/{site}/run-2", "--after", "/{site}/run")[0] == 0
    settings = read_site_settings(local, "books")
    assert (settings.run_folder, settings.after) == (Path("/books/run-2"), Path("/books/run"))


def test_a_site_without_usable_settings_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="create it with `verfedgnn flare site"):
        read_site_settings(tmp_path, "books")
    (tmp_path / SITE_FILE).write_text('federation = "x"\ncolour = "red"\n')
    with pytest.raises(ConfigError, match="colour"):
        read_site_settings(tmp_path, "books")
