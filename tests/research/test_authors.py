"""The authors' protocol: each of its differences is in force in a training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from verfedgnn.data import synthetic_ratings
from verfedgnn.gnn.model import Model
from verfedgnn.runs.run import Run
from verfedgnn.training.train import train
from verfedgnn_research.baselines import Where
from verfedgnn_research.paper import authors
from verfedgnn_research.paper.authors import AuthorsCell, CountSketch, SketchParty, cut_by_appearance


def cell(gnn: str, tmp_path: Path) -> AuthorsCell:
    table = synthetic_ratings(users=60, items=40, ratings=1500, seed=3)
    order = np.random.default_rng(1).permutation(len(table))
    rows = [f"{table.user[row]},{table.item[row]},{table.rating[row]:g}" for row in order]
    (tmp_path / "ratings.csv").write_text("user,item,rating\n" + "\n".join(rows) + "\n")
    settings = (("training.batch", 400), ("training.epochs", 2), ("exchange", 5.0))
    return AuthorsCell((str(tmp_path / "ratings.csv"),), "verfedgnn", gnn, 0, 3, settings)


def test_items_are_cut_in_order_of_first_appearance() -> None:
    table = synthetic_ratings(users=60, items=41, ratings=1500, seed=3)
    order = list(dict.fromkeys(table.item.tolist()))
    names = [table.item_ids[item] for item in order]
    parties = cut_by_appearance(table, 4)
    assert [party.ratings.n_items for party in parties] == [10, 10, 10, 11]
    for place, party in enumerate(parties):
        end = None if place == 3 else 10 * place + 10
        assert set(party.ratings.item_ids.tolist()) == set(names[10 * place : end])
    assert sum(len(party.ratings) for party in parties) == len(table)


def test_a_count_sketch_has_one_entry_in_each_column() -> None:
    sketch = CountSketch(60, 5.0, 0, torch.device("cpu"))
    phi = sketch.project(torch.eye(60))
    assert phi.shape == (12, 60)
    assert torch.equal((phi != 0).sum(0), torch.ones(60, dtype=torch.long))
    assert set(phi[phi != 0].tolist()) == {-1.0, 1.0}
    y = torch.arange(24.0).reshape(12, 2)
    assert torch.equal(sketch.reconstruct(y), phi.T @ y)


@pytest.mark.parametrize("gnn", ["gcn", "gat", "ggnn"])
def test_a_training_follows_the_authors_protocol(
    gnn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[tuple[Run, type]] = []

    def seen(*given: Any, **options: Any) -> Run:
        runs.append((train(*given, **options), options["party"]))
        return runs[0][0]

    sketched: list[CountSketch] = []
    send = CountSketch.send
    monkeypatch.setattr(CountSketch, "send", lambda sketch, x: sketched.append(sketch) or send(sketch, x))
    monkeypatch.setattr(authors, "train", seen)
    chosen = cell(gnn, tmp_path)
    record = chosen.run(Where(torch.device("cpu")))
    ((run, party),) = runs
    assert party is SketchParty
    assert sketched, "what is exchanged is the sketch"
    parts = np.concatenate([data.parts for data in run.prepared()])
    assert np.bincount(parts, minlength=3)[2] == 0, "nothing is kept for a later test"
    assert (parts == 1).mean() == pytest.approx(0.2, abs=0.02)
    best = min(entry["valid_rmse"] for entry in run.history)
    assert record["test"]["rmse"] == pytest.approx(best, abs=1e-6), "the best epoch on the test part itself"

    model = Model(run.config.model, 60)
    first = model.views(model.initial_public(0, 3.0))
    assert torch.equal(first["mix"], torch.full((3,), 1 / 3))
    assert "gru_bias" not in first
    weights = {"gcn": [], "gat": ["w", "attention"], "ggnn": ["gru_in", "gru_state"]}[gnn]
    for name in weights:
        assert first[name].std() == pytest.approx(1.0, abs=0.25), "N(0, 1); ours has 0.41"
    if gnn == "gcn":
        ours = Model(super(AuthorsCell, chosen).config().model, 60)
        assert torch.equal(first["w"], ours.views(ours.initial_public(0, 3.0))["w"])
