"""Forgetting items: nothing of them stays in the run folder, and all other items are served as before."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import verfedgnn as vf
from verfedgnn.core.errors import RunError
from verfedgnn.runs.added_items import AddedItem
from verfedgnn.upkeep import forget as cutting
from verfedgnn.upkeep import forget as forgetting
from verfedgnn.upkeep.new_items import NewItems

pytestmark = pytest.mark.usefixtures("short_own_models")

Command = Callable[..., tuple[int, str, str]]
PARTY = "party-1"


@pytest.fixture(scope="module")
def trained(small_parties: list[vf.PartyData], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forget") / "run"
    run = vf.train(small_parties, vf.Config.preset("best", epochs=4, evaluate_every=2), out=folder)
    new = NewItems(folder, run, PARTY)
    rated = {str(user): (5.0, None) for user in run.parties[0].ratings.user_ids[:3]}
    new.add({"zz-new": AddedItem("zz-new", ratings=rated)})
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def traces(folder: Path, item: str) -> list[str]:
    """Return the files in which the id is found."""
    return [str(path) for path in folder.rglob("*") if path.is_file() and item.encode() in path.read_bytes()]


def popular(run: vf.Run) -> tuple[int, str]:
    """Return row and id of the party's item with the most ratings, which EASE includes."""
    table = run.parties[1].ratings
    row = int(np.bincount(table.item, minlength=table.n_items).argmax())
    return row, str(table.item_ids[row])


def test_nothing_of_the_items_stays_and_all_others_are_served_as_before(
    folder: Path, command: Command, tmp_path: Path
) -> None:
    before = vf.Run.load(folder, added=False)
    row, item = popular(before)
    assert traces(folder, item), "the attack finds the id before"
    ids = tmp_path / "ids.txt"
    ids.write_text(f"{item}\n")
    code, out, err = command("forget", folder, "--item-file", ids, "--item", "zz-new", "--json")
    assert code == 0, err
    assert traces(folder, item) == traces(folder, "zz-new") == []
    after = vf.Run.load(folder)
    count = int((before.parties[1].ratings.item == row).sum())
    assert json.loads(out)["ratings"] == {PARTY: count + 3}
    assert len(after.parties[1].ratings) == len(before.parties[1].ratings) - count
    assert len(after.parts[1]) == len(after.parties[1].ratings)
    runs = [(run, run.ranker, run.judged, run.judged.ranker) for run in (before, after)]
    assert len(set(map(id, runs[0]))) == 4
    for old, new in zip(*runs, strict=True):
        rows = np.arange(len(old.models[1].users))
        with_item, without = (run.models[1].score(torch.from_numpy(rows)).numpy() for run in (old, new))
        weights = old.models[1].item_scores
        left = np.delete(with_item, row, 1)
        if weights is None:
            np.testing.assert_array_equal(without, left)
        else:  # users who have the item lose what it says about others
            has = np.isin(rows, old.parties[1].ratings.user[old.parties[1].ratings.item == row])
            np.testing.assert_allclose(without[~has], left[~has], atol=1e-6)
        assert (new.models[0].items == old.models[0].items).all()
    with pytest.raises(RunError):
        after.predict([str(after.parties[0].ratings.user_ids[0])], [item])
    after.evaluate()


@pytest.mark.parametrize("step", ["rewrite_added", "_rewrite_models", "append_record"])
def test_a_kill_at_any_step_is_finished_later(
    folder: Path, step: str, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    _, item = popular(vf.Run.load(folder, added=False))

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cutting, step, die)
        with pytest.raises(KeyboardInterrupt):
            forgetting.forget(folder, items=[item])
    assert command("forget", folder, "--quiet")[0] == 0
    assert traces(folder, item) == []
    vf.Run.load(folder)


def test_a_party_whose_items_are_all_to_be_forgotten_is_left_alone(folder: Path) -> None:
    """A party without items could not be served, and with it no other party of the run."""
    items = vf.Run.load(folder).parties[1].ratings.item_ids.tolist()
    with pytest.raises(RunError, match="no other items of party-1"):
        forgetting.forget(folder, items=items)
    assert traces(folder, items[0]), "nothing was changed"


def test_unknown_and_ambiguous_items_are_refused(
    folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = command("forget", folder, "--item", "nothing")
    assert (code, "1 item not in" in err) == (2, True)
    _, item = popular(vf.Run.load(folder, added=False))
    assert command("forget", folder, "--item", item, "--party", "party-0")[0] == 2
    assert command("forget", folder, "--item", item, "--user", "u0001")[0] == 2
    parties, parts = cutting.read_party_tables(folder / "parties")
    monkeypatch.setattr(
        cutting,
        "read_party_tables",
        lambda _: ([parties[1], vf.PartyData("other", parties[1].ratings)], parts),
    )
    with pytest.raises(RunError, match="several parties have these items"):
        forgetting.forget(folder, items=[item])
    assert traces(folder, item), "nothing was changed"
