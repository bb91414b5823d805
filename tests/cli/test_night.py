"""One command a member and night: what it calls, what it records, what it keeps, and the examples that start it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from alert_rules import check_alerts, find_rules, needs_promtool
from shells import Shells
from verfedgnn.cli import night_command
from verfedgnn.cli.main import app
from verfedgnn.core.errors import RunError
from verfedgnn.runs.nights import EXITS, HISTORY, Night, read_nights

EXAMPLES = Path(__file__).parents[2] / "examples"


class Nights:
    """A folder of nights whose trainings and promotions are played."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder / "nights"
        self.file = folder / "film.csv"
        self.metrics = folder / "night.prom"
        self.codes: dict[str, int] = {}
        """Exit code of train, resume and promote."""
        self.called: list[str] = []
        self.absent: list[str] = []
        """Parties for which the status of a training that fails says that it waits."""
        monkeypatch.setattr(night_command, "_call", self.call)

    def call(self, words: list[str], *, quiet: bool, seconds: float = 0.0) -> tuple[int, str]:
        self.called.append(" ".join(words).replace(f"{self.folder}/", ""))
        kind = "resume" if "--resume" in words else words[0]
        code = self.codes.get(kind, 0)
        if words[0] == "promote":
            link = Path(words[words.index("--link") + 1])
            if not code:
                link.unlink()
                link.symlink_to(Path(words[1]).name)
            return code, "error: worse" if code else ""
        place = Path(words[words.index("--out" if "--out" in words else "--resume") + 1])
        place.mkdir(exist_ok=True, parents=True)
        (place / "config.toml").touch()
        if not code:
            (place / "metrics.json").write_text("{}")
            (place / "status.json").unlink(missing_ok=True)
        elif self.absent:
            since = time.mktime((2026, 11, 14, 2, 13, 0, 0, 0, -1))
            (place / "status.json").write_text(json.dumps({"waits_for": self.absent, "waits_since": since}))
        return code, "error: no space left" if code else ""

    def age(self, hours: float) -> None:
        """Let the last night have begun earlier."""
        last = read_nights(self.folder)[-1]
        earlier = replace(last, started=last.due(-hours).isoformat())
        with (self.folder / HISTORY).open("a") as file:
            file.write(json.dumps(asdict(earlier)) + "\n")

    def night(
        self, name: str, *options: str, command: str = "train", data: str | None = None
    ) -> tuple[int, list[str]]:
        """Run a night on new data; return its exit code and the commands that it called."""
        self.file.write_text(name if data is None else data)
        self.called = []
        words = {
            "train": ["train", "--data", f"film={self.file}"],
            "party": ["party", "--federation", "film", "--ratings", str(self.file)],
            "coordinator": ["coordinator", "hub"],
        }[command]
        done = CliRunner().invoke(
            app,
            [
                "night",
                str(self.folder),
                "--name",
                name,
                "--textfile",
                str(self.metrics),
                "--quiet",
                *options,
                "--",
                *words,
            ],
        )
        return done.exit_code, self.called

    def kill(self, name: str) -> None:
        """Kill a night while it trains."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(night_command, "_call", lambda *_, **__: 1 / 0)
            assert self.night(name)[0] == 1

    def words(self) -> dict[str, str]:
        return {each.night: each.result for each in read_nights(self.folder)}


@pytest.fixture
def nights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nights:
    return Nights(tmp_path, monkeypatch)


def test_nights_are_promoted_kept_and_failed(nights: Nights) -> None:
    assert nights.night("mon") == (0, [f"train --data film={nights.file} --out mon"])
    current = nights.folder / "current"
    assert current.readlink() == Path("mon"), "the first run is served"
    nights.codes["promote"] = 5
    code, called = nights.night("tue")
    assert (code, len(called)) == (5, 2)
    assert called[0].endswith("--out tue --after current")
    assert called[1] == "promote tue --over current --link current --tolerance 0.5"
    assert nights.night("tue") == (5, []), "a finished night is not repeated"
    nights.codes = {"train": 2}
    assert nights.night("wed")[0] == 1
    assert read_nights(nights.folder)[-1].reason == "error: no space left"
    nights.codes = {}
    nights.age(24)
    assert nights.night("thu")[0] == 0, "a failed night does not stop the next one"
    assert current.readlink() == Path("thu")
    assert nights.words() == {"mon": "promoted", "tue": "kept", "wed": "given up", "thu": "promoted"}


def test_a_stopped_or_killed_night_is_resumed_first(nights: Nights) -> None:
    nights.codes["train"] = 4
    assert nights.night("mon")[0] == 4
    nights.codes = {}
    assert nights.night("tue") == (0, ["train --resume mon"])
    nights.kill("wed")
    assert nights.words() == {"mon": "promoted", "wed": "begun"}
    (nights.folder / "wed").mkdir()
    (nights.folder / "wed" / "config.toml").touch()
    nights.codes["resume"] = 2
    code, called = nights.night("thu")
    assert (code, len(called)) == (0, 3)
    assert called[0] == "train --resume wed"
    assert called[1].endswith("--out wed --after current --overwrite"), "killed too early to be resumed"
    (nights.folder / "fri").mkdir()
    assert nights.night("fri")[0] == 0, "killed before the first file"
    assert nights.words() == dict.fromkeys(("mon", "wed", "fri"), "promoted")


@pytest.mark.parametrize("command", ["party", "coordinator"])
def test_a_failed_night_of_a_federation_goes_on_in_its_folder(nights: Nights, command: str) -> None:
    """In a fresh folder the coordinator would refuse the party, and both would wait for each other."""
    nights.night("sun", command=command)
    nights.codes[command] = 2
    assert nights.night("mon", command=command)[0] == 1
    nights.codes = {}
    code, called = nights.night("tue", command=command)
    assert code == 0
    assert "--out mon" in called[0]
    assert nights.words()["mon"] == ("trained" if command == "coordinator" else "promoted")
    assert nights.night("tue", command=command)[0] == 0, "tonight's comes after it"


@pytest.mark.parametrize("code", [2, 4, 9])
def test_a_night_is_given_up_after_twenty_hours(nights: Nights, code: int) -> None:
    nights.codes["party"] = code
    nights.night("mon", command="party")
    nights.age(19)
    assert "--out mon" in nights.night("tue", command="party")[1][0]
    nights.age(21)
    nights.codes = {}
    assert "--out tue" in nights.night("tue", command="party")[1][0]
    assert nights.words() == {"mon": "given up", "tue": "promoted"}
    assert nights.night("mon", command="party") == (7, []), "and not tried again"


def test_a_night_that_waits_is_stopped_when_it_is_given_up(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait(words: list[str], *, quiet: bool, seconds: float) -> tuple[int, str]:
        assert 0 < seconds < 1.81
        time.sleep(seconds)
        return nights.call(words, quiet=quiet)

    monkeypatch.setattr(night_command, "_call", wait)
    nights.codes["coordinator"] = 4
    nights.absent = ["bookshop", "server"]
    assert nights.night("mon", "--give-up", "0.0005", command="coordinator")[0] == 7
    (night,) = read_nights(nights.folder)
    assert night.result == "given up"
    assert night.reason == "bookshop, the coordinator absent from 02:13: not over in time"


def test_the_time_is_up_for_a_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = tmp_path / "child"
    child.write_text("#!/bin/sh\ntrap 'exit 4' TERM\nsleep 60 2>/dev/null & wait\n")
    child.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(child))
    assert night_command._call(["train"], quiet=True, seconds=0.5)[0] == 4


def test_the_history_names_who_was_absent(nights: Nights) -> None:
    nights.codes["coordinator"] = 2
    nights.absent = ["bookshop"]
    nights.night("mon", command="coordinator")
    assert read_nights(nights.folder)[0].reason == "bookshop absent from 02:13: error: no space left"
    nights.codes = {}
    nights.night("mon", command="coordinator")
    assert read_nights(nights.folder)[0].reason == ""


def test_a_coordinator_between_two_trainings_is_not_done(nights: Nights) -> None:
    """Its metrics.json is there after the first training; those of lists and of all ratings follow."""
    nights.codes["coordinator"] = 4
    nights.night("mon", command="coordinator")
    (nights.folder / "mon" / "metrics.json").write_text("{}")
    nights.codes = {}
    assert nights.night("mon", command="coordinator") == (0, ["coordinator hub --out mon"])


def test_the_same_files_are_nothing_new(nights: Nights) -> None:
    nights.night("mon", data="same")
    assert nights.night("tue", data="same") == (6, [])
    assert nights.words()["tue"] == "nothing new"


def test_a_party_trains_also_without_news_of_its_own(nights: Nights) -> None:
    """The others wait for it, and may have news."""
    nights.night("mon", data="same", command="party")
    assert nights.night("tue", data="same", command="party")[0] == 0
    assert nights.words()["tue"] == "promoted"


@pytest.mark.parametrize("words", [["--ratings", "FOLDER"], ["--ratings=FOLDER"], ["--data", "film=FOLDER"]])
def test_a_new_file_in_a_folder_of_ratings_is_new(nights: Nights, tmp_path: Path, words: list[str]) -> None:
    """With a folder of ratings and any file beside it, every night after the first was one without news."""
    ratings, settings = tmp_path / "ratings", tmp_path / "settings.toml"
    ratings.mkdir()
    settings.touch()
    command = ["train", "--config", str(settings), *(word.replace("FOLDER", str(ratings)) for word in words)]
    empty = night_command._hash_files(command)
    (ratings / "monday.csv").write_text("user,item,rating")
    monday = night_command._hash_files(command)
    assert len({"", empty, monday}) == 3
    assert night_command._hash_files(command) == monday


def test_old_nights_go_and_the_served_one_stays(nights: Nights) -> None:
    nights.night("1")
    nights.codes["promote"] = 5
    for name in "234":
        nights.night(name, "--keep", "2")
    left = {place.name for place in nights.folder.iterdir() if place.is_dir()}
    assert left == {"1", "3", "4", "current"}


def test_a_night_that_is_over_keeps_no_checkpoints(nights: Nights) -> None:
    """They were nine tenths of a coordinator's nights."""
    nights.codes["train"] = 4
    nights.night("mon")
    checkpoint = nights.folder / "mon" / "lists" / "checkpoint" / "party"
    checkpoint.mkdir(parents=True)
    nights.codes["resume"] = 4
    nights.night("mon")
    assert checkpoint.is_dir()
    nights.codes = {}
    nights.night("mon")
    assert not checkpoint.parent.exists()
    assert (nights.folder / "mon" / "metrics.json").is_file()


def test_a_night_leaves_torch_to_its_training(tmp_path: Path) -> None:
    """Loading it took a sixth of a night."""
    code = """if True:
        import sys
        from pathlib import Path
        from verfedgnn.cli.night_command import NightRules, hold_night
        def train(place, current, seconds):
            place.mkdir()
            (place / "metrics.json").touch()
            return 0, ""
        assert hold_night(Path(sys.argv[1]), "party", train, "", NightRules()).result == "promoted"
        assert "torch" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "nights")], check=True)


def test_a_coordinator_only_trains(nights: Nights) -> None:
    assert nights.night("mon", command="coordinator") == (0, ["coordinator hub --out mon"])
    assert nights.words() == {"mon": "trained"}
    assert not (nights.folder / "current").exists()


def test_two_nights_do_not_overlap(nights: Nights) -> None:
    nights.night("mon")
    with night_command._alone(nights.folder):
        assert nights.night("tue")[0] == 75


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_night_alone_stops_its_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The child signals its parent only, as Kubernetes does, and stops once; then it says more than a pipe holds."""
    child = tmp_path / "child"
    child.write_text(
        f"""#!{sys.executable}
import os, signal, sys, time
def stop(*_):
    sys.stderr.write("a line of the log\\n" * 20_000)
    os._exit(4)
signal.signal({number:d}, stop)
os.kill(os.getppid(), {number:d})
time.sleep(180)
"""
    )
    child.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(child))
    before = signal.getsignal(number)
    assert night_command._call(["train"], quiet=True) == (4, "by a signal")
    assert signal.getsignal(number) is before


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("log", [["--log", "json"], ["--log=json"]])
def test_every_line_is_json_where_the_training_logs_json(tmp_path: Path, log: list[str]) -> None:
    words = ["night", "nights", "--", "party", "--federation", "nowhere", "--ratings", "none.csv", *log]
    done = subprocess.run(
        [sys.executable, "-m", "verfedgnn", *words], cwd=tmp_path, capture_output=True, text=True
    )
    lines = [json.loads(line) for line in (done.stderr + done.stdout).splitlines()]
    assert (done.returncode, lines[-1]["result"]) == (1, "failed")
    assert lines[0]["level"] == "error"
    assert lines[-1]["reason"] == read_nights(tmp_path / "nights")[0].reason == lines[0]["event"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("error: no space left\n", "no space left"),
        ("next: verfedgnn train --columns item=film\n", ""),
        (
            '{"time": "T", "level": "info", "event": "waiting", "missing": ["film"]}\n',
            "waiting  missing=film",
        ),
        ('{"time": "T", "level": "critical", "event": "Traceback:\\n...\\nKeyError: 3\\n"}\n', "KeyError: 3"),
        ('{"of": "something else"}\n', '{"of": "something else"}'),
        ("{something else\n", "{something else"),
    ],
)
def test_a_line_of_a_log_says_a_reason(line: str, reason: str) -> None:
    assert night_command._read_reason(line) == reason


def test_a_stopped_training_leaves_no_process_and_goes_on(shells: Shells) -> None:
    words = ["night", "nights", "--name", "mon", "--", "train", "--data", "synthetic"]
    words += ["--set", "lists=false", "--set", "final=false"]
    night = shells.start(*words)
    place = shells.folder / "nights" / "mon"
    while not (place / "config.toml").exists():
        assert night.poll() is None, shells.logs()
        time.sleep(0.02)
    os.kill(night.pid, signal.SIGTERM)
    assert night.wait(180) == 4, shells.logs()
    (stopped,) = read_nights(place.parent)
    assert (stopped.result, stopped.reason) == ("stopped", "by a signal")
    with night_command._alone(place.parent):
        """Nobody holds the lock, so the training is gone."""
    shells.now(*words, "--set", "epochs=1")
    assert read_nights(place.parent)[-1].result == "promoted"


@pytest.mark.parametrize("words", [[], ["serve"], ["train", "--out", "x"], ["party", "--after", "x"]])
def test_what_night_sets_itself_is_refused(tmp_path: Path, words: list[str]) -> None:
    done = CliRunner().invoke(app, ["night", str(tmp_path), "--", *words])
    assert done.exit_code
    assert not (tmp_path / HISTORY).exists()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("night", "../mine"),
        ("night", "MINE"),
        ("night", "."),
        ("night", "x" * 300),
        ("result", "\x1b[2J"),
        ("result", ["kept"]),
        ("reason", 3),
        ("seconds", "long"),
        ("started", "yesterday"),
        ("started", "9999-12-31T23:59:59+00:00"),
    ],
)
def test_a_history_of_somebody_else_removes_nothing_outside(nights: Nights, field: str, value: Any) -> None:
    mine = nights.folder.parent / "mine"
    mine.mkdir()
    nights.folder.mkdir()
    line = asdict(Night("mon", "kept", "", "2026-11-16T01:00:00+00:00", 1.0, ""))
    line[field] = str(mine) if value == "MINE" else value
    (nights.folder / HISTORY).write_text(f"{json.dumps(line)}\n")
    assert nights.night("tue", "--keep", "1")[0] == 1
    assert mine.is_dir()
    shown = CliRunner().invoke(app, ["nights", str(nights.folder)])
    assert isinstance(shown.exception, RunError)


def test_a_served_run_that_is_gone_is_no_first_night(nights: Nights) -> None:
    """Tonight's run would be served without a comparison, and with users who were forgotten in the one that is gone."""
    nights.night("mon")
    shutil.rmtree(nights.folder / "mon")
    assert nights.night("tue") == (1, [])
    (nights.folder / "current").unlink()
    assert nights.night("tue")[0] == 0


def test_a_folder_that_is_no_night_is_left_alone(nights: Nights) -> None:
    mine = nights.folder / "mon" / "my-data.csv"
    mine.parent.mkdir(parents=True)
    mine.write_text("precious")
    assert nights.night("mon") == (1, [])
    assert mine.read_text() == "precious"
    assert nights.night("tue")[0] == 0


def test_a_history_that_is_a_link_is_not_followed(nights: Nights) -> None:
    nights.folder.mkdir()
    (nights.folder / HISTORY).symlink_to(nights.folder.parent / "mine")
    assert nights.night("mon")[0] == 1
    assert not (nights.folder.parent / "mine").exists()
    (nights.folder.parent / "mine").write_text("")
    shown = CliRunner().invoke(app, ["nights", str(nights.folder)])
    assert "it is a link" in str(shown.exception)


def test_a_night_that_is_a_link_is_not_followed(nights: Nights) -> None:
    """Attack: a failed night in the history is a link to a run of somebody who trains in this folder."""
    mine = nights.folder.parent / "mine"
    mine.mkdir()
    nights.folder.mkdir()
    night = Night("mon", "failed", "", datetime.now(UTC).isoformat(timespec="seconds"), 1.0, "")
    (nights.folder / HISTORY).write_text(f"{json.dumps(asdict(night))}\n")
    (nights.folder / "mon").symlink_to(mine)
    (mine / "config.toml").write_text("precious")
    assert nights.night("tue") == (1, [])
    assert [file.read_text() for file in mine.iterdir()] == ["precious"]


@pytest.mark.parametrize("name", [".", "..", "../mine", "/tmp/mine", "a/b"])
def test_a_night_is_a_folder_in_the_folder_of_nights(nights: Nights, name: str) -> None:
    nights.night("mon")
    assert nights.night(name)[0] == 1
    assert nights.words() == {"mon": "promoted"}
    assert (nights.folder / "mon").is_dir()


def test_the_history_is_shown_and_measured(nights: Nights) -> None:
    nights.night("mon")
    nights.codes["train"] = 2
    nights.night("tue")
    nights.age(24)
    nights.night("wed")
    shown = CliRunner().invoke(app, ["nights", str(nights.folder)])
    assert "no space left" in shown.output
    listed = json.loads(CliRunner().invoke(app, ["nights", str(nights.folder), "--json"]).stdout)
    assert [each["bytes"] > 0 for each in listed] == [True, False, False], "the size on disk"
    text = nights.metrics.read_text()
    assert re.search(r'verfedgnn_night_result{folder=".*/nights",result="failed"} 1\n', text)
    assert re.search(r"verfedgnn_nights_without_promotion{.*} 2\n", text)


def test_a_torn_history_goes_on(nights: Nights) -> None:
    """After a full disk or a loss of power, the last line may be half of one."""
    nights.night("mon")
    with (nights.folder / HISTORY).open("a") as file:
        file.write('{"night": "tue", "resu')
    assert nights.words() == {"mon": "promoted"}
    assert nights.night("tue")[0] == 0
    assert nights.words() == {"mon": "promoted", "tue": "promoted"}


def test_a_night_that_is_tried_again_has_no_old_reason(nights: Nights) -> None:
    nights.codes["train"] = 2
    nights.night("mon")
    assert read_nights(nights.folder)[0].reason
    nights.kill("mon")
    assert read_nights(nights.folder)[0].reason == ""


def test_a_killed_night_has_metrics_that_others_may_read(nights: Nights) -> None:
    before = os.umask(0o077)
    try:
        nights.kill("mon")
    finally:
        os.umask(before)
    assert re.search(r'verfedgnn_night_result{folder=".*",result="begun"} 1\n', nights.metrics.read_text())
    assert nights.metrics.stat().st_mode & 0o777 == 0o644, "node_exporter is another user"
    assert (nights.folder / HISTORY).stat().st_mode & 0o777 == 0o600


def test_metrics_are_not_written_through_a_link(nights: Nights, tmp_path: Path) -> None:
    """Attack: who may write to the folder of the metrics has the night overwrite another file."""
    other = tmp_path / "other"
    other.write_text("mine")
    nights.metrics.with_suffix(".part").symlink_to(other)
    nights.night("mon")
    assert other.read_text() == "mine"
    assert "verfedgnn_night_result" in nights.metrics.read_text()


def test_alerts_name_metrics_that_exist(nights: Nights) -> None:
    nights.night("mon")
    written = {line.split("{")[0].split(" ")[0] for line in nights.metrics.read_text().splitlines()}
    night = [rule["expr"] for rule in find_rules() if "verfedgnn_night" in rule["expr"]]
    assert len(night) == 3
    for expression in night:
        assert any(name in expression for name in written), expression


@needs_promtool
@pytest.mark.parametrize(
    ("codes", "hours", "firing"),
    [
        ({}, 20, set()),
        ({}, 28, {"VerfedgnnNightLate"}),
        ({"train": 2}, 20, {"VerfedgnnNightFailed", "VerfedgnnNoPromotion"}),
        ({"promote": 5}, 20, {"VerfedgnnNoPromotion"}),
    ],
    ids=["good", "late", "failed twice", "kept twice"],
)
def test_alerts_fire_on_the_nights_they_are_for(
    nights: Nights, tmp_path: Path, codes: dict[str, int], hours: int, firing: set[str]
) -> None:
    """Prometheus' own checker evaluates the rules on the metrics of recorded nights."""
    nights.night("mon")
    nights.codes |= codes
    nights.night("tue")
    nights.age(24)
    nights.night("wed")
    metrics = re.sub(r"(night_time_seconds{.*}) .*", r"\1 0", nights.metrics.read_text())
    check_alerts(tmp_path, metrics, hours * 60, firing)


@needs_promtool
def test_a_night_that_was_given_up_is_an_alert(nights: Nights, tmp_path: Path) -> None:
    nights.night("mon")
    nights.codes["train"] = 2
    nights.night("tue")
    nights.age(24)
    assert nights.night("tue") == (7, [])
    metrics = re.sub(r"(night_time_seconds{.*}) .*", r"\1 0", nights.metrics.read_text())
    check_alerts(tmp_path, metrics, 60, {"VerfedgnnNightFailed"})


@pytest.mark.parametrize("name", ["film", "hub", "shop"])
def test_the_examples_start_the_command(nights: Nights, name: str) -> None:
    """Each example's command line is one that `night` takes, and its metrics are where the page says."""
    unit = (EXAMPLES / "nightly" / "verfedgnn-nightly@.service").read_text()
    line = next(line.partition("=")[2] for line in unit.splitlines() if line.startswith("ExecStart="))
    if name == "shop":
        line = (
            (EXAMPLES / "nightly" / "crontab").read_text().splitlines()[-1].split("&& ")[1].split(" >> ")[0]
        )
    else:
        conf = (EXAMPLES / "nightly" / f"{name}.conf").read_text().splitlines()[-1]
        line = line.replace("%i", name).replace("$NIGHT", conf.removeprefix("NIGHT="))
    program, *words = shlex.split(line)
    assert program == "/opt/verfedgnn/bin/verfedgnn"
    assert words[3] == f"/var/cache/verfedgnn/{name}.prom"
    words[1], words[3] = str(nights.folder), str(nights.metrics)
    assert CliRunner().invoke(app, words).exit_code == 0, line
    assert nights.metrics.exists()


def test_the_unit_starts_a_failed_night_again_and_opens_nothing_but_metrics() -> None:
    unit = (EXAMPLES / "nightly" / "verfedgnn-nightly@.service").read_text()
    settings = dict(line.split("=", 1) for line in unit.splitlines() if "=" in line and line[0] != "#")
    assert settings["Restart"] == "on-failure"
    assert settings["RestartPreventExitStatus"] == str(EXITS["given up"])
    wanted = {EXITS[word] for word in ("kept", "nothing new", "stopped")}
    assert set(map(int, settings["SuccessExitStatus"].split())) == wanted
    assert (settings["StateDirectoryMode"], settings["UMask"]) == ("0700", "0077")
    assert (settings["CacheDirectory"], settings["CacheDirectoryMode"]) == ("verfedgnn", "0755")
    assert settings["KillMode"] == "mixed", "the night forwards the signal"
