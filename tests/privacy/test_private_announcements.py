"""Preset private announces nothing that depends on ratings: scale and catalogue are declared, and splits move no other rating."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import verfedgnn as vf
from helpers import federation
from verfedgnn.cli.service_commands import read_own_ratings
from verfedgnn.data.read_options import ReadOptions
from verfedgnn.data.splits import NEWCOMER
from verfedgnn.privacy.rating_dp import sensitivity
from verfedgnn.protocol.messages import Hello
from verfedgnn.runs.party_tables import read_party_tables, write_party_tables
from verfedgnn.runs.prepared_data import choose_split, prepare, split_ratings

PRIVATE = vf.Config.preset("private")


def write(path: Path, rows: list[tuple[int, int, float]]) -> Path:
    lines = ["user,item,rating", *(f"u{user:02},i{item:02},{rating:g}" for user, item, rating in rows)]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def rows_of(seed: int, highest: float = 5.0) -> list[tuple[int, int, float]]:
    """Twenty users with some ratings each, of thirty items."""
    rng = np.random.default_rng(seed)
    cells = sorted({*rng.integers(600, size=300).tolist(), *range(0, 600, 31)})
    return [(cell // 30, cell % 30, float(1 + cell % highest)) for cell in cells]


def hellos(folder: Path, rows: list[tuple[int, int, float]], **options: object) -> list[Hello]:
    """What two parties announce, of which the first has these ratings."""
    files = {"a": write(folder / "a.csv", rows), "b": write(folder / "b.csv", rows_of(1))}
    runtime = federation(vf.read_parties(files, **options), PRIVATE)  # type: ignore[arg-type]
    return [replace_secrets(candidate.hello()) for candidate in runtime.candidates.values()]


def replace_secrets(hello: Hello) -> Hello:
    return hello.model_copy(update={"stay": "", "mask_key": None, "mask_signature": None})


def test_one_rating_more_changes_no_announcement(tmp_path: Path) -> None:
    """The first rating of a thirty-first item: counted items would go from 30 to 31."""
    declared = {"scale": (1, 5), "catalogue": 40}
    before = hellos(tmp_path, rows_of(0), **declared)
    after = hellos(tmp_path, [*rows_of(0), (3, 77, 2.0)], **declared)
    assert before == after
    assert [(hello.items, hello.ratings, hello.scale) for hello in before] == [(40, 0, (1.0, 5.0))] * 2


def test_the_model_is_the_same_for_a_larger_catalogue(tmp_path: Path) -> None:
    """Only the announcement uses the declared number."""
    files = {name: write(tmp_path / f"{name}.csv", rows_of(k)) for k, name in enumerate("abc")}
    runs = [
        vf.train(
            vf.read_parties(files, scale=(1, 5), catalogue=size),
            PRIVATE.with_values({"training.epochs": 2}),
        )
        for size in (30, 5000)
    ]
    assert torch.equal(runs[0].public, runs[1].public)


def first_gradient(folder: Path, rows: list[tuple[int, int, float]], **options: object) -> torch.Tensor:
    """The public gradient of a party's first round, before noise."""
    files = {"a": write(folder / "a.csv", rows), "b": write(folder / "b.csv", rows_of(1))}
    parties = vf.read_parties(files, **options)  # type: ignore[arg-type]
    runtime = federation(parties, PRIVATE.with_values({"split.kind": "rating"}))  # withholds nobody
    party = runtime.parties["a"]
    released: list[torch.Tensor] = []
    release = party.protect_gradient

    def record(gradient: torch.Tensor, *rest: object) -> object:
        released.append(gradient.clone())
        return release(gradient, *rest)  # type: ignore[arg-type]

    party.protect_gradient = record  # type: ignore[assignment,method-assign]
    runtime.round()
    return released[0]


def test_one_rating_moves_a_gradient_by_delta_under_a_declared_scale(tmp_path: Path) -> None:
    """A scale that is found in the ratings moves all targets with one of them: by 26, where Delta is 1.12."""
    rows = rows_of(0, highest=4.0)
    outlier = (3, 5, 10.0)
    rows = [row for row in rows if row[:2] != outlier[:2]]
    with_it, without = (
        first_gradient(tmp_path, each, scale=(1, 10), catalogue=40) for each in ([*rows, outlier], rows)
    )
    assert 0 < float((with_it - without).norm()) <= sensitivity(PRIVATE) * (1 + 1e-4)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"catalogue": 40}, r"no declared rating scale, .*scale=\(1, 5\)"),
        ({"scale": (1, 5)}, r"no declared catalogue, .*catalogue=30000"),
        ({"scale": (1, 5), "catalogue": 29}, r"ratings of 30 items, more than the declared catalogue of 29"),
        ({"scale": (1, 4), "catalogue": 40}, r"rating outside the scale 1 to 4, the first in line \d+"),
    ],
)
def test_what_is_not_declared_is_refused(tmp_path: Path, options: dict[str, object], reason: str) -> None:
    with pytest.raises(vf.DataError, match=reason):
        hellos(tmp_path, rows_of(0), **options)


def test_commands_refuse_before_they_begin(
    tmp_path: Path, command: Callable[..., tuple[int, str, str]]
) -> None:
    files = [write(tmp_path / f"{name}.csv", rows_of(k)) for k, name in enumerate("ab")]
    words = [word for file in files for word in ("--data", file)]
    code, _, errors = command("train", "--preset", "private", *words, "--read", "scale=1,5")
    assert (code, "--read catalogue=30000" in errors) == (2, True)
    declared = ("--read", "a:catalogue=40", "--read", "b:catalogue=30", "--set", "epochs=2", "--quiet")
    assert command("train", "--preset", "private", *words, "--read", "scale=1,5", *declared)[0] == 0
    reading = ReadOptions.from_texts(catalogue=["40"])
    with pytest.raises(vf.DataError, match=r"scale=\(1, 5\)"):  # the first step of `party` and `align`
        read_own_ratings(str(files[0]), reading, PRIVATE)
    assert read_own_ratings(str(files[0]), reading, vf.Config.preset("paper")).catalogue == 40
    code, out, _ = command("data", "check", files[0], "--read", "catalogue=29")
    assert code != 0
    assert "more than the declared catalogue of 29" in out


def test_declarations_survive_in_a_run_folder(tmp_path: Path) -> None:
    parties = vf.read_parties({"a": write(tmp_path / "a.csv", rows_of(0))}, scale=(1, 5), catalogue=40)
    write_party_tables(tmp_path / "run", parties, [np.zeros(len(parties[0].ratings), np.int8)])
    (again,), _ = read_party_tables(tmp_path / "run")
    assert (again.ratings.scale_declared, again.ratings.catalogue) == (True, 40)


# -- splits ----------------------------------------------------------------------------------------------------------------


@given(st.integers(0, 100), st.integers(0, 200), st.sampled_from(["auto", "date", "random", "rating"]))
def test_removing_a_rating_leaves_every_other_rating_in_its_part(seed: int, gone: int, kind: str) -> None:
    table = replace(vf.read_ratings("synthetic", users=20, items=30, ratings=220, seed=seed), name="a")
    dates = [str(np.datetime64(int(np.quantile(table.time, share)), "s"))[:10] for share in (0.4, 0.7)]
    split = {"split.kind": kind} | ({"split.dates": dates} if kind == "date" else {})
    config = choose_split([vf.PartyData("a", table)], PRIVATE.with_values(split))
    kept = np.arange(len(table)) != gone
    after = choose_split([vf.PartyData("a", table.take(kept))], PRIVATE.with_values(split))
    assert after == config, "the data choose nothing that all parties learn"
    parts = split_ratings(vf.PartyData("a", table), config.split, seed, b"secret")
    assert NEWCOMER in parts or kind == "rating"
    again = split_ratings(vf.PartyData("a", table.take(kept)), config.split, seed, b"secret")
    assert (again == parts[kept]).all()


def test_settings_that_let_one_rating_move_or_release_others_are_refused() -> None:
    """By auto, a party would be judged by date if enough of its customers rated after the dates."""
    with pytest.raises(vf.ConfigError, match=r"split\.kind = date with split\.dates \(by auto"):
        PRIVATE.with_values({"split.dates": ["2025-01-01", "2025-03-01"]})
    with pytest.raises(vf.ConfigError, match="lists = false"):
        PRIVATE.with_values({"lists": True, "training.gate": True})


def test_parties_cut_from_a_table_have_their_items_as_catalogue() -> None:
    parties = vf.read_parties("synthetic", parties=3)
    prepare(parties, PRIVATE, torch.device("cpu"))
    assert [party.ratings.catalogue for party in parties] == [party.ratings.n_items for party in parties]
