"""The run before a training: it is compared with today's data and recorded, and nothing of it is trained on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import verfedgnn as vf
from helpers import same
from verfedgnn.core.errors import Interrupted
from verfedgnn.data.synthetic import synthetic_tables, write_tables

pytestmark = pytest.mark.usefixtures("short_own_models")

SHORT = vf.Config.preset("best", epochs=4, evaluate_every=2, gate=False, lists=False)


@pytest.fixture(scope="module")
def before(small_parties: list[vf.PartyData], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with other settings and fewer items."""
    folder = tmp_path_factory.mktemp("before") / "run"
    fewer = [
        vf.PartyData(each.name, each.ratings.select_items(np.arange(3, each.ratings.n_items)))
        for each in small_parties
    ]
    vf.train(fewer, SHORT.with_values({"dim": 8, "seed": 1}), out=folder)
    return folder


def test_a_training_after_another_run_starts_from_nothing(
    small_parties: list[vf.PartyData], before: Path, tmp_path: Path
) -> None:
    """It resumes also without the folder of the run before."""
    alone = vf.train(small_parties, SHORT)
    shutil.copytree(before, tmp_path / "before")
    with pytest.raises(Interrupted):
        vf.train(small_parties, SHORT, out=tmp_path / "cut", after=tmp_path / "before", stop=lambda: True)
    shutil.rmtree(tmp_path / "before")
    run = vf.resume(tmp_path / "cut")
    same(alone, run)


def test_a_party_may_join_or_leave(small_parties: list[vf.PartyData], before: Path) -> None:
    run = vf.train([*small_parties[1:], vf.PartyData("new", small_parties[0].ratings)], SHORT, after=before)
    assert [party.name for party in run.parties] == ["party-1", "party-2", "new"]


def test_what_is_no_finished_run_is_named(small_parties: list[vf.PartyData], tmp_path: Path) -> None:
    with pytest.raises(vf.RunError, match="does not exist"):
        vf.train(small_parties, SHORT, after=tmp_path / "nothing")
    with pytest.raises(Interrupted):
        vf.train(small_parties, SHORT, out=tmp_path / "cut", stop=lambda: True)
    with pytest.raises(vf.RunError, match="is not finished; name a finished run, or leave out after"):
        vf.train(small_parties, SHORT, after=tmp_path / "cut")


@pytest.mark.filterwarnings("always::verfedgnn.core.errors.RunWarning")
def test_the_command_warns_of_a_wrong_file_and_names_the_next_step(
    command: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    write_tables(synthetic_tables(3, 0.3, users=40, items=20, ratings=400), tmp_path)
    files = [str(tmp_path / f"{name}.parquet") for name in ("film", "book", "album")]
    data = [word for file in files for word in ("--data", file)]
    first, second = tmp_path / "first", tmp_path / "second"
    short = [word for pair in ("epochs=2", "gate=false", "lists=false") for word in ("--set", pair)]
    code, _, err = command("train", *data, *short, "--out", first)
    assert code == 0, err
    code, _, err = command("train", *data, *short, "--after", first, "--out", second, "--json")
    assert code == 0, err
    said = " ".join(err.split())
    assert f"promote {second} --over {first}" in said
    assert "warning" not in said
    swapped = [f"film={files[1]}", f"book={files[0]}", f"album={files[2]}"]
    words = [word for file in swapped for word in ("--data", file)]
    code, _, err = command("train", *words, *short, "--after", first, "--quiet")
    assert code == 0, err
    said = " ".join(err.split())
    for name in ("film", "book"):
        assert f"warning: 100 % of {name}'s items are new since {first}; is this the right file?" in said
    assert "album's items" not in said
