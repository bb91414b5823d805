"""The bench: records that are kept, phases that add up, a report of what is there and of what is not."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from verfedgnn.cli.main import app
from verfedgnn.core.errors import Interrupted, RunError
from verfedgnn.reports.document import Table
from verfedgnn.research.bench import QUESTIONS, growth, peers
from verfedgnn.research.bench import two_process as pair
from verfedgnn.research.bench.aims import aims
from verfedgnn.research.bench.bench_report import bench_document
from verfedgnn.research.bench.bench_suite import BenchScope, Task, choose_questions
from verfedgnn.research.bench.measure import Phases, peak_memory
from verfedgnn.research.bench.task_queue import TaskRecords, TaskRunner, run_tasks
from verfedgnn.research.experiments.job_queue import QueueProgress


def burn(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_phases_count_what_is_inside_once() -> None:
    phases = Phases()
    phases.take()
    with phases.phase("outer"):
        burn(0.02)
        with phases.phase("inner"):
            burn(0.04)
    spent = phases.take()
    assert spent["inner"] == pytest.approx(0.04, abs=0.01)
    assert spent["outer"] == pytest.approx(0.02, abs=0.01)


def test_the_functions_that_phases_watch_are_there() -> None:
    for at in pair.PLACES.values():
        for owner, name in at:
            assert callable(getattr(owner, name))


def test_a_record_is_kept_and_belongs_to_its_arguments(tmp_path: Path) -> None:
    records = TaskRecords(tmp_path)
    task = Task("one", "growth:none", {"users": 1, "targets": (1.0, 2.0)})
    assert records.finished(task) is None
    records.put(task, {"name": "one", **task.about, "figures": {}})
    assert records.finished(task) is not None
    assert records.finished(Task("one", "growth:none", {"users": 2})) is None
    records.put(task, {"name": "one", **task.about, "failed": "out of memory"})
    assert records.finished(task) is None


@pytest.mark.usefixtures("warm")
def test_a_task_that_fails_or_is_too_large_says_so() -> None:
    runner = TaskRunner()
    record = runner.measure(Task("wrong", "growth:exponent", {"sizes": [1, 2]}), "verfedgnn bench", 4)
    assert "values" in record["failed"]
    large = runner.measure(Task("large", "growth:exponent", needs=9), "verfedgnn bench", 4)
    assert "needs about 9 GB" in large["failed"]


@pytest.mark.usefixtures("warm")
def test_an_interrupted_measurement_leaves_no_record(tmp_path: Path) -> None:
    """The first task finishes; the second is terminated when the queue is interrupted."""
    sizes = {"users": 600, "items": 100, "ratings": 3000}
    tasks = [
        Task("short", "growth:exponent", {"sizes": [1, 2], "values": [1, 2]}),
        Task("long", "two_process:measure", {**sizes, "rounds": 10**6}),
    ]

    def interrupt(state: QueueProgress) -> None:
        if state.done == 1:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="stopped with 1 of 2 measurements done"):
        run_tasks(tasks, tmp_path, command=lambda task: "verfedgnn bench", memory=lambda: 4, watch=interrupt)
    assert [TaskRecords(tmp_path).finished(task) is not None for task in tasks] == [True, False]


@pytest.mark.usefixtures("warm")
def test_a_party_and_a_coordinator_are_measured_by_themselves() -> None:
    task = Task(
        "small",
        "two_process:measure",
        {"users": 600, "items": 100, "ratings": 3000, "rounds": 4, "floor": True},
    )
    record = TaskRunner().measure(task, "verfedgnn bench", 4)
    figures = record["figures"]
    assert figures["party"]["cpu"] > 0
    assert set(figures["party"]["phases"]) >= {
        "products",
        "projection",
        "quantization",
        "encoding",
        "public step",
    }
    assert figures["bytes"]["up"] + figures["bytes"]["down"] == figures["bytes"]["per_party_per_round"]
    assert record["commit"] is None or record["commit"]
    assert record["machine"]["cores"]


def test_an_absent_peer_is_a_remark(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = peers.PEERS["Cornac MF"][3]
    monkeypatch.setitem(peers.PEERS, "Cornac MF", ("no_such_module", "cornac", "", ready))
    found = peers.reach(peer="Cornac MF", data="synthetic", targets=[1.0])
    assert found == {"missing": "not installed (pip install cornac)"}
    assert "pip install cornac" in str(
        peers.answer({"peer-cornac": found, "curve-best-gcn": {"points": [[10, 5, 0.95, 1.0]]}}, "x")
    )


def test_exponents() -> None:
    assert growth.exponent([1, 2, 4], [3, 6, 12]) == pytest.approx(1)
    assert growth.exponent([1, 2, 4], [3, 12, 48]) == pytest.approx(2)


def test_the_report_says_what_is_missing(tmp_path: Path) -> None:
    out = tmp_path / "scale"
    scope = BenchScope(quick=True)
    tasks = QUESTIONS["growth"].tasks(scope)
    figures = {
        "users": 1,
        "party": {"cpu": 1.0, "memory": 1e6},
        "coordinator": {"cpu": 1.0},
        "bytes": {"per_party_per_round": 1.0},
    }
    about = {"machine": {"processor": "x", "cores": 2, "python": "3", "torch": "2"}, "commit": "abc"}
    for task in tasks[:2]:
        TaskRecords(out).put(task, {**task.about, **about, "figures": figures})
    TaskRecords(out).put(tasks[2], {**tasks[2].about, "failed": "needs about 9 GB"})
    page, text = bench_document(list(QUESTIONS.values()), scope, out).write(tmp_path, "scale")
    assert page.is_file()
    assert f"{tasks[2].name}: needs about 9 GB" in text.read_text()
    assert f"{tasks[3].name}: not yet" in text.read_text()
    assert "scale/users.svg" in text.read_text()
    assert (out / "users.svg").is_file()


def test_names_are_those_of_questions() -> None:
    assert [question.name for question in choose_questions(["bytes"], QUESTIONS)] == ["bytes"]
    assert len(choose_questions([], QUESTIONS)) == len(QUESTIONS)
    with pytest.raises(RunError, match="no question is called 'speed'"):
        choose_questions(["speed"], QUESTIONS)


def test_the_command_measures_what_is_not_there_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []

    def fake(runner: TaskRunner, task: Task, command: str, memory: float) -> dict[str, object]:
        taken.append(task.name)
        return (
            {"name": task.name, **task.about, "failed": "not today"}
            if "half" in task.name
            else {
                "name": task.name,
                **task.about,
                "machine": {"processor": "x", "cores": 2, "python": "3", "torch": "2"},
                "commit": command,
                "figures": {
                    "users": 10,
                    "party": {"cpu": 1.0, "wall": 1.0, "memory": 1e9},
                    "coordinator": {"cpu": 1.0, "wall": 1.0, "memory": 1e9},
                    "bytes": {"up": 1.0, "down": 1.0, "per_party_per_round": 2.0},
                },
            }
        )

    monkeypatch.setattr(TaskRunner, "measure", fake)
    words = ["bench", "yelp", "--quick", "--out", str(tmp_path / "b"), "--quiet"]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert taken == ["yelp", "yelp-half", "yelp-twentieth"]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert taken[3:] == ["yelp-half"]
    assert "not today" in (tmp_path / "b.md").read_text()
    assert (
        json.loads((tmp_path / "b" / "records" / "yelp.json").read_text())["commit"]
        == "verfedgnn bench yelp --quick"
    )


def test_peak_memory_is_of_this_process() -> None:
    assert 1e7 < peak_memory() < 1e11
    assert BenchScope().pick(1, 2) == 1


def test_an_aim_says_whether_it_was_reached() -> None:
    def peers(ours: float | None) -> dict[str, Any]:
        return {
            "peer-cornac": {"reached": {"0.9152": {"cpu": 0.1}}},
            "peer-ours-quick": {"reached": {"0.9152": ours and {"cpu": ours}}},
        }

    for ours, measured, word in (
        (1.0, "10 times", "yes"),
        (10.0, "100 times", "**no**"),
        (None, "not reached", "**no**"),
    ):
        table = aims(peers(ours))[0]
        assert isinstance(table, Table)
        (row,) = table.rows
        assert row[2].startswith(measured)
        assert row[3] == word
    assert aims({}) == []
