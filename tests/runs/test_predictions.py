"""The exported predictions give the figures of metrics.json to somebody who has polars and scikit-learn only."""

from __future__ import annotations

import json
import subprocess
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
    example = [sys.executable, str(ROOT / "examples" / "recompute.py"), str(tmp_path / "cases.parquet")]
    printed = subprocess.check_output(example, text=True).splitlines()
    found = {tuple(line.split()[:2]): float(line.split()[2]) for line in printed}
    new = metrics["lift"]["lists"]["newcomers"]["overall"]["federated"]
    expected = {("known", "hitrate@20"): metrics["test"]["hitrate@20"], ("new", "hitrate@20"): new}
    if not likes:
        expected["known", "rmse"] = metrics["test"]["rmse"]
        expected["new", "rmse"] = metrics["lift"]["newcomers"]["overall"]["federated"]
    assert found == pytest.approx(expected, abs=1e-6)
    cases = pl.read_parquet(tmp_path / "cases.parquet").filter(pl.col("customers") == "new", pl.col("liked"))
    alone = cases.group_by("party", "user").agg((pl.col("place_alone") > 0).any())["place_alone"].mean()
    assert alone == pytest.approx(metrics["lift"]["lists"]["newcomers"]["overall"]["alone"], abs=1e-6)
