"""The exported predictions give the figures of metrics.json to somebody who has polars and scikit-learn only."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import verfedgnn as vf

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("likes", [False, True])
def test_the_example_recomputes_the_figures_of_a_run(
    small_parties: list[vf.PartyData],
    tmp_path: Path,
    command: Callable[..., tuple[int, str, str]],
    short_own_models: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    likes: bool,
) -> None:
    parties = small_parties
    if likes:
        tables = [replace(p.ratings, rating=np.full_like(p.ratings.rating, 5)) for p in parties]
        parties = [vf.PartyData(p.name, table) for p, table in zip(parties, tables, strict=True)]
    vf.train(parties, vf.Config.preset("best", epochs=4, final=False), out=tmp_path / "run")
    code, _, err = command("evaluate", tmp_path / "run", "--predictions", tmp_path / "cases.parquet")
    assert code == 0, err
    assert (tmp_path / "cases.parquet").stat().st_mode & 0o777 == 0o600
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    monkeypatch.setattr(sys, "argv", ["recompute.py", str(tmp_path / "cases.parquet")])
    runpy.run_path(str(ROOT / "examples" / "recompute.py"), run_name="__main__")
    printed = capsys.readouterr().out.splitlines()
    found = {}
    for customers, party, figure, value, count in (line.replace(" (", " ").split()[:5] for line in printed):
        found[customers, party, figure] = float(value), int(count)
    expected = {}
    for table in [metrics["lift"]["lists"], *([] if likes else [metrics["lift"]])]:
        for customers, each in (("known", table), ("new", table["newcomers"])):
            for row in [*each["parties"], each["overall"] | {"name": "all"}]:
                expected[customers, row["name"], table["metric"]] = row["federated"], row["users"]
    assert found == {key: pytest.approx(value, abs=1e-6) for key, value in expected.items()}
    cases = pl.read_parquet(tmp_path / "cases.parquet")
    test = cases.filter(pl.col("customers") != "new")
    assert "unjudged" in test["customers"], "some customers have ratings in the test part only"
    hits = test.filter("liked").group_by("party", "user").agg((pl.col("place") > 0).any())["place"].mean()
    assert hits == pytest.approx(metrics["test"]["hitrate@20"], abs=1e-6)
    if not likes:
        rmse = ((test["rating"] - test["predicted"]) ** 2).mean() ** 0.5
        assert rmse == pytest.approx(metrics["test"]["rmse"], abs=1e-6)
    cases = cases.filter(pl.col("customers") == "new", pl.col("liked"))
    alone = cases.group_by("party", "user").agg((pl.col("place_alone") > 0).any())["place_alone"].mean()
    assert alone == pytest.approx(metrics["lift"]["lists"]["newcomers"]["overall"]["alone"], abs=1e-6)
