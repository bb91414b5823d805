"""The nightly job of examples/nightly, as cron and systemd start it: with a bare environment."""

from __future__ import annotations

import configparser
import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from verfedgnn.data import synthetic_ratings

EXAMPLES = Path(__file__).parents[2] / "examples" / "nightly"
BARE = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "SHELL": "/bin/sh"}
STUB = """#!/bin/sh
# Stands for verfedgnn: notes its arguments, makes what a training makes, and ends with the code in the file named first.
echo "$@" >> calls
if [ "$1" = train ]; then
    for word in "$@"; do case $last in --out|--resume) folder=$word;; esac; last=$word; done
    mkdir -p "$folder" && touch "$folder/config.toml"
fi
code=$(cat "$1.code" 2>/dev/null || echo 0)
if [ "$1" = train ] && [ "$2" = --resume ] && [ -f resume.code ]; then code=$(cat resume.code); fi
if [ "$1" = train ] && [ "$code" = 0 ]; then touch "$folder/metrics.json"; fi
exit "$code"
"""


def cron_line() -> str:
    """Return the command of the crontab, without times and user."""
    return (EXAMPLES / "crontab").read_text().splitlines()[-1].split(maxsplit=6)[6]


def unit(name: str) -> configparser.ConfigParser:
    found = configparser.ConfigParser(strict=False, interpolation=None)
    found.optionxform = str  # type: ignore[assignment, method-assign]
    found.read(EXAMPLES / name)
    return found


def start(line: str, settings: Path) -> subprocess.CompletedProcess[str]:
    """Run a command line of the examples as cron and systemd do, with the paths of this test."""
    line = line.replace("/opt/verfedgnn/nightly.sh", str(EXAMPLES / "nightly.sh"))
    line = line.replace("/etc/verfedgnn/nightly.env", str(settings))
    return subprocess.run(
        ["/bin/sh", "-c", line], env=BARE, cwd="/", text=True, capture_output=True, timeout=120, check=False
    )


class Nights:
    """A folder of runs whose trainings are played by a stub."""

    def __init__(self, folder: Path) -> None:
        self.runs = folder / "runs"
        self.runs.mkdir()
        stub = folder / "stub"
        stub.write_text(STUB)
        stub.chmod(0o755)
        self.stub = stub
        self.settings = folder / "nightly.env"

    def night(self, date: str) -> tuple[int, list[str]]:
        """Run the job on a date; return its exit code and the commands that it called."""
        self.settings.write_text(
            f"VERFEDGNN={self.stub}\nRUNS={self.runs}\nTRAIN='--data x.csv'\nPROMOTE='--tolerance 1'\n"
            f"date() {{ echo {date}; }}\n"
        )
        calls = self.runs / "calls"
        calls.unlink(missing_ok=True)
        done = start(cron_line(), self.settings)
        return done.returncode, calls.read_text().splitlines() if calls.exists() else []

    def end(self, command: str, code: int) -> None:
        (self.runs / f"{command}.code").write_text(str(code))


def test_nights_are_promoted_kept_and_failed(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    assert nights.night("2026-11-16") == (0, ["train --data x.csv --out 2026-11-16 --json"])
    current = nights.runs / "current"
    assert current.readlink() == Path("2026-11-16"), "the first run is served"
    promote = "promote 2026-11-17 --over current --link current --tolerance 1 --json"
    train = "train --data x.csv --out 2026-11-17 --after current --json"
    nights.end("promote", 5)
    assert nights.night("2026-11-17") == (5, [train, promote]), "kept"
    nights.end("promote", 0)
    assert nights.night("2026-11-17") == (0, [promote]), "a trained run is not trained again"
    nights.end("train", 2)
    assert nights.night("2026-11-18")[0] == 2, "failed"
    assert current.readlink() == Path("2026-11-16"), "only `promote` switches the link"


def test_an_unfinished_night_is_resumed_first(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    nights.end("train", 4)
    assert nights.night("2026-11-16")[0] == 4, "stopped"
    nights.end("train", 0)
    assert nights.night("2026-11-17") == (0, ["train --resume 2026-11-16 --json"])
    nights.end("train", 4)
    nights.night("2026-11-18")
    nights.end("train", 0)
    nights.end("resume", 2)
    code, calls = nights.night("2026-11-18")
    assert calls[1] == "train --data x.csv --out 2026-11-18 --after current --overwrite --json", (
        "cannot be resumed"
    )
    assert (code, len(calls)) == (0, 3)
    (nights.runs / "2026-11-19").mkdir()
    (nights.runs / "2026-11-19" / "after.json").touch()
    assert nights.night("2026-11-19")[0] == 0, "killed before the first file of the run"


def test_two_jobs_do_not_overlap(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    nights.night("2026-11-16")
    held = ["flock", str(nights.runs / ".nightly.lock"), "sh", "-c", "echo held; read line"]
    with subprocess.Popen(held, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert nights.night("2026-11-17") == (75, [])
        holder.communicate("go\n")
    assert nights.night("2026-11-17")[0] == 0


@pytest.mark.usefixtures("warm")
def test_two_real_nights(tmp_path: Path) -> None:
    """cron starts the first, systemd the second; the link leads to it and the metrics are there."""
    table = synthetic_ratings(users=60, items=60, ratings=1500, seed=1)
    rows = zip(table.user, table.item, table.rating, strict=True)
    lines = ["user,item,rating", *(f"{u},{v},{r:g}" for u, v, r in rows)]
    data = tmp_path / "film.csv"
    data.write_text("\n".join(lines[:-50]))
    program = tmp_path / "verfedgnn"
    paths = ":".join(path for path in sys.path if path)
    program.write_text(
        f'#!/bin/sh\nPYTHONPATH={shlex.quote(paths)} OMP_NUM_THREADS=1 exec {sys.executable} -m verfedgnn "$@"\n'
    )
    program.chmod(0o755)
    settings = tmp_path / "nightly.env"

    def write_settings(date: str) -> None:
        settings.write_text(
            f"VERFEDGNN={program}\nRUNS={tmp_path}/runs\n"
            f"TRAIN='--data {data} --parties 3 --preset paper --set epochs=3 --set batch=400'\n"
            f"PROMOTE='--tolerance 50 --textfile {tmp_path}/metrics/verfedgnn.prom'\n"
            f"date() {{ echo {date}; }}\n"
        )

    write_settings("2026-11-16")
    done = start(cron_line(), settings)
    assert done.returncode == 0, done.stderr
    data.write_text("\n".join(lines))
    write_settings("2026-11-17")
    done = start(unit("verfedgnn-nightly.service")["Service"]["ExecStart"], settings)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "current").readlink() == Path("2026-11-17")
    decision = json.loads((tmp_path / "runs" / "2026-11-17.json").read_text())
    assert sum(party["ratings"]["added"] for party in decision["data"]["parties"]) == 50
    text = (tmp_path / "metrics" / "verfedgnn.prom").read_text()
    for name in (
        "promoted 1.0",
        'drift_unknown_users{party="party-0"}',
        'accuracy{metric="rmse",run="champion"}',
    ):
        assert f"verfedgnn_night_{name}" in text
    metrics = json.loads((tmp_path / "runs" / "2026-11-17" / "metrics.json").read_text())
    assert 0 < metrics["after"]["drift"]["party-0"]["rating_distance"] < 0.2


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    service = unit("verfedgnn-nightly.service")["Service"]
    assert "5" in service["SuccessExitStatus"].split(), "a kept run is no failure of the service"
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here")
    for name in ("verfedgnn-nightly.service", "verfedgnn-nightly.timer"):
        text = (
            (EXAMPLES / name).read_text().replace("/opt/verfedgnn/nightly.sh", str(EXAMPLES / "nightly.sh"))
        )
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / "verfedgnn-nightly.timer")],
        capture_output=True,
        text=True,
        check=False,
    )
    ours = [line for line in done.stderr.splitlines() if "verfedgnn" in line]
    assert ours == []


def test_kubernetes_runs_the_same_script() -> None:
    job = yaml.safe_load((EXAMPLES / "cronjob.yaml").read_text())
    assert job["spec"]["concurrencyPolicy"] == "Forbid"
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["command"][1:] == ["/settings/nightly.sh", "/settings/nightly.env"]
    mounted = {volume["name"] for volume in pod["containers"][0]["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
