"""What a new user of Python gets wrong is answered in the words of Python."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import verfedgnn as vf
from verfedgnn.core.option_names import on_command_line, option, reading_table

pytestmark = pytest.mark.usefixtures("short_own_models")


@pytest.fixture(scope="module")
def films() -> pd.DataFrame:
    rows = [(u, f"f{i}", 1 + (u * i) % 5) for u in range(40) for i in range(u % 3, 12)]
    return pd.DataFrame(rows, columns=["customer", "film", "stars"])


@pytest.fixture(scope="module")
def books() -> pd.DataFrame:
    rows = [(u, f"b{i}", 1 + (u + i) % 5) for u in range(10, 50) for i in range(u % 4, 12)]
    return pd.DataFrame(rows, columns=["customer", "isbn", "score"])


def test_one_table_is_not_divided_unasked(films: pd.DataFrame, books: pd.DataFrame, tmp_path: Path) -> None:
    films.rename(columns={"film": "item"}).to_csv(tmp_path / "films.csv", index=False)
    for table in (films, tmp_path / "films.csv", books):
        with pytest.raises(vf.DataError, match=r"one table, .* one table per party, .*parties=3 or by="):
            vf.VerFedRecommender().fit(table)
    with pytest.raises(vf.DataError, match="one table"):
        vf.read_parties(books)
    with pytest.raises(vf.DataError, match="'books' is the only party, and joining needs at least two"):
        vf.VerFedRecommender().fit({"books": books})


def test_any_column_may_name_the_parties(films: pd.DataFrame, books: pd.DataFrame) -> None:
    names = ["user", "item", "rating"]
    both = pd.concat(
        [
            films.set_axis(names, axis=1).assign(shop="films"),
            books.set_axis(names, axis=1).assign(shop="books"),
        ]
    )
    found = vf.read_parties(both, columns={"party": "shop"})
    assert repr(found) == (
        "[<PartyData books: 420 ratings (1 to 5) by 40 users on 12 items>, "
        "<PartyData films: 441 ratings (1 to 5) by 40 users on 12 items>]"
    ), "each party's own users, not those of all parties"
    with pytest.raises(
        vf.DataError, match='party="store", which does not exist; the columns are: user, item'
    ):
        vf.read_parties(both, columns={"party": "store"})


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"itm": "film"}, 'unknown key \'itm\'; did you mean own={"films": {"columns": {"item": "film"}}}'),
        ({"film": "item"}, 'unknown key \'film\'; did you mean own={"films": {"columns": {"item": "film"}}}'),
        ({"colour": "film"}, "unknown key 'colour'. The keys are user, item, rating, event, time"),
        (
            {"item": "movie"},
            'item=movie, which does not exist; .* did you mean own={"films": {"columns": {"item": "film"}}}',
        ),
    ],
)
def test_a_wrong_key_of_columns_is_named(films: pd.DataFrame, columns: dict[str, str], words: str) -> None:
    with pytest.raises(vf.DataError, match=words):
        vf.VerFedRecommender().fit({"films": films, "books": films}, columns=columns)


def test_the_columns_of_one_table_are_named_for_it() -> None:
    with reading_table("books"):
        assert option("columns", {"item": "..."}) == 'own={"books": {"columns": {"item": ...}}}'
        assert option("missing", "drop") == 'missing="drop"'
        with on_command_line():
            assert option("columns", {"item": "..."}) == "--columns books:item=..."
    assert option("columns", {"item": "..."}) == 'columns={"item": ...}'


def test_settings_are_keyword_arguments() -> None:
    described = repr(vf.settings("epochs"))
    assert described.startswith("training.epochs: integer, at least 1; default 50\n")
    assert "paper 50   best 30" in described
    assert {"model.dim", "training.epochs"} <= {entry.path for entry in vf.settings()}
    with pytest.raises(vf.ConfigError, match=r"did you mean `epochs=`"):
        vf.Config.preset("best", epoch=3)
    with pytest.raises(ValueError, match=r"`vf.settings\(\)` lists them all"):
        vf.Config.preset("best", qqqq=3)


def test_a_check_foresees_a_fit(films: pd.DataFrame, books: pd.DataFrame) -> None:
    found = vf.check({"films": films, "books": books})
    assert not found.usable
    assert 'did you mean own={"films": {"columns": {"item": "film"}}}?' in repr(found)
    assert "not usable</span>" in found._repr_html_()
    assert repr(found).endswith(
        "This cannot be trained, because films cannot be used (no column for item). "
        "Correct it as the errors say, then check again."
    )
    alone = vf.check({"books": books})
    assert not alone.usable
    assert "'books' is the only party and joining needs two or more" in repr(alone).splitlines()[-1]
    apart = vf.check({"books": books, "others": books.assign(customer=books["customer"].map("x{}".format))})
    assert "with the others: spell user ids in the same way" in apart.conclusion
    tiny = vf.check({"books": books, "others": books[:20]})
    assert "may refuse this, because others has fewer than 30 ratings" in tiny.to_dict()["conclusion"]
    with pytest.raises(vf.DataError, match="there are no parties: give at least one file or table"):
        vf.check({})
    found = vf.check({"films": films, "books": books}, own={"films": {"columns": {"item": "film"}}})
    assert found.usable
    assert found.overlap is not None
    assert found.overlap.shared == 30
    assert "2 sources can be trained together: 30 of 50 users (60 %)" in repr(found)
    assert "--" not in repr(found), "no flags of the command line"
    assert found.to_dict()["overlap"]["shared"] == 30
    twice = pd.concat([books, books[:2]], ignore_index=True)
    repeated = vf.check(twice).sources[0]
    assert [(p.kind, p.places) for p in repeated.problems if p.fatal] == [("repeated", (420, 421))]
    assert vf.check(twice, duplicates="last").usable
    assert vf.check(books.assign(party="x")).sources[0].name == "x"
    assert vf.check(books, events=5).usable


def test_a_check_prints_nothing_by_itself_in_a_notebook(
    books: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert "usable" in repr(vf.check(books)), "not in an output of its own"
