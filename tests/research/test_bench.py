"""The bench: one record per data set and seed, kept at once, and a table of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import verfedgnn as vf
from verfedgnn_research.baselines import Where
from verfedgnn_research.bench import HEADER, BenchFile, Measurement, bench_rows, read_case


@pytest.mark.usefixtures("warm")
def test_a_bench_is_written_and_not_repeated(
    command: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["bench", "synthetic", "--preset", "paper", "--set", "epochs=2", "--parties", 3, "--seeds", 2]
    words += ["--out", tmp_path / "mine.json", "--quiet", "--json"]
    code, out, err = command(*words)
    assert (code, err) == (0, "")
    records = json.loads((tmp_path / "mine.json").read_text())
    assert json.loads(out)["trainings"] == records
    assert [(record["data"], record["seed"], record["parties"]) for record in records] == [
        ("synthetic", 0, 3),
        ("synthetic", 1, 3),
    ]
    for record in records:
        assert record["ratings"]["rounds"] > 0
        assert record["ratings"]["bytes_per_party"] > 0
        assert record["ratings"]["test"]["rmse"] > 0
        assert record["cpu_seconds"] > 0
    page = (tmp_path / "mine.md").read_text()
    assert "`verfedgnn bench synthetic --preset paper --set epochs=2 --seeds 2 --parties 3`" in page
    assert "| synthetic | 0, 1 |" in page

    monkeypatch.setattr("verfedgnn_research.experiments.training_queue._start_workers", None)
    assert command(*words)[:2] == (code, out)


def test_lists_have_their_own_rounds_and_add_to_the_bytes() -> None:
    part = {"rounds": 10, "best_round": 8, "bytes_per_party": 2_000_000, "valid": {}}
    ratings = part | {"test": {"rmse": 0.9, "ndcg@20": 0.1}}
    lists = part | {"rounds": 30, "test": {"rmse": None, "ndcg@20": 0.3}}
    record = {"data": "a", "seed": 0, "cpu_seconds": 5.0, "ratings": ratings}
    (row,) = bench_rows([record | {"lists": lists}, record | {"seed": 1, "lists": lists}])
    assert dict(zip(HEADER, row, strict=True)) == {
        "data": "a",
        "seeds": "0, 1",
        "RMSE": "0.9000 ± 0.0000",
        "rounds": "10",
        "NDCG@20": "0.3000 ± 0.0000",
        "rounds of lists": "30",
        "MB a party": "4.0",
        "CPU seconds": "5",
    }
    (row,) = bench_rows([record])
    assert row[4:7] == ["0.1000", "-", "2.0"]


def test_another_configuration_is_another_training(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    for dim in (2, 3):
        config = vf.Config.preset("paper", dim=dim, epochs=1)
        job = Measurement("synthetic", config, 2)
        BenchFile(path).put(job, job.run(Where(torch.device("cpu"))))
        record = BenchFile(path).finished(job)
        assert record is not None
        assert record["config"] == config.fingerprint()
    assert len(json.loads(path.read_text())) == 2


def test_a_training_of_another_commit_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Measurement("synthetic", vf.Config.preset("paper"))
    for code in ("one", "two"):
        monkeypatch.setattr("verfedgnn_research.bench.commit", lambda code=code: code)
        file = BenchFile(tmp_path / "bench.json")
        assert file.finished(job) is None
        file.put(job, {**job.key(), "commit": code})
        assert file.finished(job) is not None
    assert [record["commit"] for record in file.records] == ["two"]


def test_the_cases_of_real_data(real_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [party.name for party in read_case("amazon", 0)] == ["books", "movies"]
    assert len(read_case("genre", 0)) == 3
    assert len(read_case("ciao-all", 0)) == 4
    monkeypatch.delenv("VERFEDGNN_DATA")
    with pytest.raises(vf.ConfigError, match="the folder VERFEDGNN_DATA, which is not set"):
        read_case("amazon", 0)


def test_a_file_of_something_else_is_refused(
    command: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    (tmp_path / "notes.json").write_text("no records")
    code, _, err = command("bench", "--out", tmp_path / "notes.json")
    assert code == 2
    assert "is not a file of `verfedgnn bench`; choose another --out" in err
    code, _, err = command("bench", "--out", tmp_path / "bench")
    assert code == 2
    assert "the records are a JSON file" in err
