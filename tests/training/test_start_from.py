"""A training that starts from an earlier run: users and items that are still there keep their parameters."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import verfedgnn as vf
from helpers import same
from verfedgnn.core.errors import Interrupted
from verfedgnn.data.ids import find_positions
from verfedgnn.data.synthetic import synthetic_tables, write_tables
from verfedgnn.gnn.model import Model
from verfedgnn.protocol.round.start_state import shrinkage
from verfedgnn.runs.prepared_data import prepare
from verfedgnn.runs.start_from import read_start
from verfedgnn.training.local_runtime import LocalRuntime, local_federation

SHORT = vf.Config.preset("best", epochs=10, evaluate_every=5, gate=False, lists=False)


def earlier(parties: list[vf.PartyData]) -> list[vf.PartyData]:
    """Return the parties before some users and items came; each has an item that is gone today."""
    before = []
    for party in parties:
        table = party.ratings.take(party.ratings.user % 4 != 0)
        table = table.select_users(np.unique(table.user)).select_items(np.arange(3, table.n_items))
        items = table.item_ids.copy()
        items[-1] = "zzz"
        before.append(vf.PartyData(party.name, replace(table, item_ids=items)))
    return vf.align_users(before)


@pytest.fixture(scope="module")
def before(small_parties: list[vf.PartyData], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the earlier run."""
    folder = tmp_path_factory.mktemp("before") / "run"
    vf.train(earlier(small_parties), SHORT, out=folder)
    return folder


def joined(parties: list[vf.PartyData], folder: Path | None) -> LocalRuntime:
    """Return a federation before its first round."""
    start = None if folder is None else read_start(folder, parties)
    inputs = [each.input for each in prepare(parties, SHORT, torch.device("cpu"))]
    return local_federation(inputs, SHORT, start=start)


def test_parameters_follow_ids(small_parties: list[vf.PartyData], before: Path) -> None:
    """Rows of users and items have moved; new ones start as in any training, and those that are gone are dropped."""
    old = vf.Run.load(before)
    now, fresh = joined(small_parties, before), joined(small_parties, None)
    users = find_positions(small_parties[0].ratings.user_ids, old.parties[0].ratings.user_ids)
    assert 0 < (users < 0).sum() < len(users)
    assert (users != np.arange(len(users))).any()
    model = now.coordinator.model
    public = vf_views(old.public, model, len(old.parties[0].ratings.user_ids))
    started = model.views(now.coordinator.replica.parameters)
    drawn = model.views(fresh.coordinator.replica.parameters)
    known = users >= 0
    for name in model.per_user:
        assert torch.equal(started[name][known], shrinkage(model, name) * public[name][users[known]])
        assert torch.equal(started[name][~known], drawn[name][~known])
    for name in set(model.shapes) - set(model.per_user):
        assert torch.equal(started[name], public[name])
    accumulated = model.views(now.coordinator.replica.accumulator)["users"]
    assert (accumulated[known] > 0).any()
    assert not accumulated[~known].any()
    for party, table in zip(old.parties, small_parties, strict=True):
        items = find_positions(table.ratings.item_ids, party.ratings.item_ids)
        assert (items < 0).sum() == 4
        private = now.parties[party.name].progress.private
        for name, values in private.parameters.items():
            assert torch.equal(values, private.averages[name])
            untouched = fresh.parties[party.name].progress.private.parameters[name]
            assert torch.equal(values[items < 0], untouched[items < 0])
            assert not torch.equal(values[items >= 0], untouched[items >= 0])
            sums = fresh.parties[party.name].progress.private.accumulators[name]
            assert torch.equal(private.accumulators[name][items < 0], sums[items < 0])


def test_embeddings_that_carry_the_typical_rating_are_not_shrunk() -> None:
    """A smaller user vector would then predict lower ratings; with biases it predicts the average taste."""
    paper, best = (Model(vf.Config.preset(name).model, 3) for name in ("paper", "best"))
    assert shrinkage(paper, "users") == 1
    assert (shrinkage(best, "users") < 1, shrinkage(best, "user_bias"), shrinkage(best, "items")) == (
        True,
        1,
        1,
    )


def vf_views(flat: torch.Tensor, model: object, users: int) -> dict[str, torch.Tensor]:
    return type(model)(model.config, users).views(flat)  # type: ignore[attr-defined,call-arg,no-any-return]


def test_training_goes_on_where_it_was(small_parties: list[vf.PartyData], tmp_path: Path) -> None:
    """With the same data, the first validation is close to the best of the earlier run, and far from a new training's."""
    config = SHORT.with_values({"epochs": 60})
    first = vf.train(small_parties, config, out=tmp_path / "first")
    second = vf.train(small_parties, SHORT, start_from=tmp_path / "first")
    best = min(entry["valid_rmse"] for entry in first.history)
    assert abs(second.history[0]["valid_rmse"] - best) < 0.01
    assert first.history[0]["valid_rmse"] > best + 0.02


def test_a_stopped_training_resumes_without_the_earlier_run(
    small_parties: list[vf.PartyData], before: Path, tmp_path: Path
) -> None:
    """Also if it was stopped in its first round: the start is in its folder."""
    shutil.copytree(before, tmp_path / "before")
    whole = vf.train(small_parties, SHORT, start_from=before)
    with pytest.raises(Interrupted):
        vf.train(
            small_parties, SHORT, out=tmp_path / "cut", start_from=tmp_path / "before", stop=lambda: True
        )
    shutil.rmtree(tmp_path / "before")
    shutil.rmtree(next((tmp_path / "cut" / "checkpoint").glob("round-*")))
    with pytest.raises(vf.RunError, match="stopped before it had its start"):
        vf.resume(tmp_path / "cut")
    with pytest.raises(Interrupted):
        vf.train(
            small_parties, SHORT, out=tmp_path / "cut", start_from=before, overwrite=True, stop=lambda: True
        )
    resumed = vf.resume(tmp_path / "cut")
    same(whole, resumed)
    earlier_metrics = json.loads((before / "metrics.json").read_text())
    record = dict(resumed.metrics["from"])
    assert record.pop("drift").keys() == {party.name for party in small_parties}
    assert record == {"public": earlier_metrics["public"], "rounds": 10, "same_split": True}
    assert vf.Run.load(tmp_path / "cut").metrics["from"] == resumed.metrics["from"]
    assert "from" not in earlier_metrics


def test_both_trainings_continue(small_parties: list[vf.PartyData], tmp_path: Path) -> None:
    """Ratings and lists; the first round of lists differs from a new training's."""
    config = SHORT.with_values({"gate": True, "lists": True})
    vf.train(small_parties, config, out=tmp_path / "first")
    again = vf.train(small_parties, config, out=tmp_path / "again", start_from=tmp_path / "first")
    fresh = vf.Run.load(tmp_path / "first")
    assert again.lists is not None
    assert fresh.lists is not None
    assert again.lists.history[0]["valid_ndcg@20"] > fresh.lists.history[0]["valid_ndcg@20"]
    assert again.history[0]["valid_rmse"] < fresh.history[0]["valid_rmse"]


def test_a_party_may_join_or_leave(small_parties: list[vf.PartyData], before: Path) -> None:
    run = vf.train(
        [*small_parties[1:], vf.PartyData("new", small_parties[0].ratings)], SHORT, start_from=before
    )
    assert [party.name for party in run.parties] == ["party-1", "party-2", "new"]


def test_a_rating_that_takes_part_twice_is_accounted_twice(
    small_parties: list[vf.PartyData], tmp_path: Path
) -> None:
    """Attack: spend a budget in many short trainings, each of which looks cheap. The epsilon is that of one long training."""
    short = vf.Config.preset("private", epochs=4, evaluate_every=2, gate=False)
    runs = [tmp_path / name for name in ("first", "second", "third")]
    vf.train(small_parties, short, out=runs[0])
    for before, run in itertools.pairwise(runs):
        vf.train(small_parties, short, out=run, start_from=before)
    long = vf.train(small_parties, short.with_values({"epochs": 12})).metrics["privacy"]
    reports = [json.loads((run / "metrics.json").read_text())["privacy"] for run in runs]
    spent = [report["gradients"]["composed"]["epsilon"] for report in reports]
    assert spent[0] < spent[1] < spent[2]
    assert spent[2] == long["gradients"]["composed"]["epsilon"]
    assert reports[2]["persons"] == long["persons"]
    assert reports[2]["events"] == long["events"]
    with pytest.raises(vf.ConfigError, match="budgets do not compose"):
        vf.train(small_parties, short.with_values({"gradients.noise_multiplier": 20.0}), start_from=runs[0])
    with pytest.raises(
        vf.ConfigError, match="budgets do not compose"
    ):  # training ratings become validation ratings
        vf.train(small_parties, short.with_values({"seed": 1}), start_from=runs[0])


def test_runs_that_cannot_be_continued_are_refused(
    small_parties: list[vf.PartyData], before: Path, tmp_path: Path
) -> None:
    with pytest.raises(vf.ConfigError, match="trained with other settings of the model"):
        vf.train(small_parties, SHORT.with_values({"dim": 8}), start_from=before)
    private = vf.Config.preset("private", **{"dim": SHORT.model.dim})
    with pytest.raises(vf.ConfigError, match="other settings of the model"):
        vf.train(small_parties, private, start_from=before)
    with pytest.raises(vf.RunError, match="does not exist"):
        vf.train(small_parties, SHORT, start_from=tmp_path / "nothing")
    with pytest.raises(Interrupted):
        vf.train(small_parties, SHORT, out=tmp_path / "cut", stop=lambda: True)
    with pytest.raises(vf.RunError, match=r"is not finished; finish it with"):
        vf.train(small_parties, SHORT, start_from=tmp_path / "cut")
    vf.train(small_parties, SHORT).save(tmp_path / "saved")
    with pytest.raises(vf.RunError, match="has no checkpoint to start from"):
        vf.train(small_parties, SHORT, start_from=tmp_path / "saved")


def test_a_training_without_a_configuration_continues_with_a_tenth_of_the_rounds(
    small_parties: list[vf.PartyData], before: Path
) -> None:
    night = vf.train(small_parties, start_from=before)
    assert night.config == SHORT.for_night()
    assert night.metrics["rounds"] == 1


def test_the_command_continues_with_the_settings_of_the_run(
    command: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    write_tables(synthetic_tables(3, 0.3, users=40, items=20, ratings=400), tmp_path)
    files = [str(tmp_path / f"{name}.parquet") for name in ("film", "book", "album")]
    data = [word for file in files for word in ("--data", file)]
    first, second = tmp_path / "first", tmp_path / "second"
    settings = [
        word for pair in ("epochs=6", "gate=false", "lists=false", "dim=8") for word in ("--set", pair)
    ]
    code, _, err = command("train", *data, "--preset", "best", *settings, "--out", first)
    assert code == 0, err
    code, out, err = command(
        "train", *data, "--from", first, "--set", "epochs=4", "--out", second, "--json", "--quiet"
    )
    assert code == 0, err
    assert json.loads(out)["rounds"] == 4
    assert json.loads(out)["from"]["rounds"] == 6
    assert vf.Run.load(second).config.model.dim == 8
    third = tmp_path / "third"
    code, _, err = command("train", *data, "--from", second, "--out", third)
    assert code == 0, err
    said = " ".join(err.split())
    assert f"continues {second} with 4 epochs" in said
    assert f"promote {third} --over {second}" in said
    assert "warning" not in said
    training = vf.Run.load(third).config.training
    assert (training.epochs, training.first_epochs, training.reads) == (4, 6, 4)
    code, _, err = command("train", *data, "--from", first, "--preset", "paper")
    assert code == 2
    assert "other settings of the model" in err
    assert f"continues {first} with" not in " ".join(err.split())
    swapped = [f"film={files[1]}", f"book={files[0]}", f"album={files[2]}"]
    words = [word for file in swapped for word in ("--data", file)]
    code, _, err = command("train", *words, "--from", first, "--set", "epochs=1", "--quiet")
    assert code == 0, err
    said = " ".join(err.split())
    for name in ("film", "book"):
        assert f"warning: 100 % of {name}'s items are new since {first}; is this the right file?" in said
    assert "album's items" not in said
