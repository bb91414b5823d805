"""Events become ratings by one rule: more is more, it saturates, and the order of rows is nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verfedgnn.core.errors import DataError
from verfedgnn.data import Ratings, read_ratings
from verfedgnn.data.data_check import check_source
from verfedgnn.data.rating_reader import rate_strength
from verfedgnn.data.read_options import EventWeights, ReadOptions, parse_events

WEIGHTS = {"view": 1.0, "cart": 3.0, "purchase": 5.0}
Event = tuple[str, str, str, int]
EVENTS = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.sampled_from("xyz"),
        st.sampled_from(sorted(WEIGHTS)),
        st.integers(0, 10**9),
    ),
    min_size=1,
    max_size=60,
)


def made(rows: list[Event], weights: EventWeights = WEIGHTS, size: int = 7) -> Ratings:
    """Ratings of events that come in batches of `size` rows."""
    schema = pa.schema(
        [("user", pa.string()), ("item", pa.string()), ("event", pa.string()), ("time", pa.int64())]
    )
    parts = [rows[start : start + size] for start in range(0, len(rows), size)]
    batches = [pa.record_batch(list(map(list, zip(*part, strict=True))), schema=schema) for part in parts]
    return read_ratings(pa.Table.from_batches(batches), events=weights)


def by_pair(ratings: Ratings) -> dict[tuple[str, str], tuple[float, int]]:
    assert ratings.time is not None
    users, items = ratings.user_ids[ratings.user].tolist(), ratings.item_ids[ratings.item].tolist()
    rated = zip(ratings.rating.tolist(), ratings.time.tolist(), strict=True)
    return dict(zip(zip(users, items, strict=True), rated, strict=True))


def test_the_documented_values() -> None:
    s = np.array([0.0, 1, 2, 3, 5, 10])
    assert rate_strength(s) == pytest.approx([1, 1.97, 2.70, 3.26, 4, 4.75], abs=0.005)
    assert rate_strength(s, (0, 10)) == pytest.approx((rate_strength(s) - 1) * 2.5)


@given(EVENTS, st.randoms(), st.integers(1, 20))
def test_the_order_of_rows_is_nothing(rows: list[Event], random: Random, size: int) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)
    one, other = made(rows), made(shuffled, size=size)
    for name in ("user", "item", "rating", "time", "user_ids", "item_ids"):
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes()


@given(EVENTS)
def test_it_is_the_formula(rows: list[Event]) -> None:
    found = by_pair(made(rows))
    assert set(found) == {(user, item) for user, item, _, _ in rows}
    for (user, item), (rating, newest) in found.items():
        own = [(kind, time) for u, i, kind, time in rows if (u, i) == (user, item)]
        strength = math.fsum(WEIGHTS[kind] for kind, _ in own)
        assert rating == pytest.approx(5 - 4 ** (1 - strength / 5), rel=1e-6)
        assert newest == max(time for _, time in own)
        assert 1 <= rating <= 5


@given(EVENTS, st.sampled_from(sorted(WEIGHTS)))
def test_one_more_event_is_never_less(rows: list[Event], kind: str) -> None:
    user, item, _, time = rows[0]
    before, after = by_pair(made(rows)), by_pair(made([*rows, (user, item, kind, time)]))
    rating, more = before[user, item][0], after[user, item][0]
    assert more > rating or rating == 5
    assert {pair: value for pair, value in after.items() if pair != (user, item)} == {
        pair: value for pair, value in before.items() if pair != (user, item)
    }


@given(EVENTS)
def test_a_stronger_kind_is_more(rows: list[Event]) -> None:
    user, item, kind, time = rows[0]
    stronger = [k for k, weight in WEIGHTS.items() if weight > WEIGHTS[kind]]
    for better in stronger:
        changed = by_pair(made([(user, item, better, time), *rows[1:]]))[user, item][0]
        assert changed > by_pair(made(rows))[user, item][0] or changed == 5


def test_sums_are_the_same_in_any_batches() -> None:
    rng = np.random.default_rng(0)
    kinds = sorted(WEIGHTS)
    rows = [
        (f"u{a}", f"i{b}", kinds[k], int(t))
        for a, b, k, t in zip(*(rng.integers(0, n, 3000) for n in (30, 30, 3, 10**6)), strict=True)
    ]
    whole = made(rows, size=3000)
    assert by_pair(made(rows, size=20)) == by_pair(whole)


def test_ten_thousand_of_one_kind_stay_on_the_scale() -> None:
    ratings = made([("a", "x", "purchase", 1)] * 10_000, size=1000)
    assert ratings.rating.tolist() == [5.0]
    assert ratings.scale == (1, 5)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.csv"
    path.write_text(
        "timestamp,visitorid,event,itemid,title\n"
        "1433221332117,1,view,10,\n1433221332118,1,view,10,Lamp\n1433221332119,1,transaction,10,Lamp\n"
        "1433221332120,2,view,11,Chair\n1433221332121,2,addtocart,10,\n"
    )
    return path


def test_a_file_of_events(shop: Path) -> None:
    ratings = read_ratings(shop, events={"view": 1, "addtocart": 3, "transaction": 5})
    assert {pair: round(value[0], 3) for pair, value in by_pair(ratings).items()} == {
        ("1", "10"): round(5 - 4 ** (1 - 7 / 5), 3),
        ("2", "11"): round(5 - 4 ** (1 - 1 / 5), 3),
        ("2", "10"): round(5 - 4 ** (1 - 3 / 5), 3),
    }
    assert by_pair(ratings)["1", "10"][1] == 1433221332
    assert ratings.titles is not None
    assert ratings.titles.tolist() == ["Lamp", "Chair"]
    assert (
        ratings.notes[0] == '5 events became 3 ratings (events={"view": 1, "addtocart": 3, "transaction": 5})'
    )
    without = read_ratings(shop, events={"view": 0, "addtocart": 3, "transaction": 5})
    assert (without.n_users, without.n_items, len(without)) == (2, 1, 2)
    assert "3 events left out" in without.notes[0]
    alike = read_ratings(shop, events=5, scale=(0, 10))
    assert len(alike) == alike.likes == 3
    assert alike.scale == (0, 10)


@pytest.mark.parametrize(
    ("first", "last", "newest"),
    [
        ("", "1500000000", 1500000000),
        ("1500000000", "1500000001.5", 1500000001),
        ("", "2020-01-01", 1577836800),
        ("2020-01-01", "2020-01-01 00:00:01.123456789", 1577836801),
        ("NA", "", None),
    ],
)
def test_times_that_change_on_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, last: str, newest: int | None
) -> None:
    """What the first block of a file says about times does not bind the others."""
    monkeypatch.setattr("verfedgnn.data.text_files._BLOCK", 1 << 12)
    path = tmp_path / "ev.csv"
    path.write_text(
        "user,item,event,time\n" + f"1,2,view,{first}\n" * 1000 + f"1,2,view,{last}\n3,4,view,{last}\n"
    )
    found = check_source("ev", path, events={"view": 1.0})
    assert found.usable, found.problems
    ratings = read_ratings(path, events={"view": 1.0})
    assert len(ratings) == 2
    assert (ratings.time is None) == (newest is None)
    if newest is not None:
        assert by_pair(ratings)["1", "2"][1] == newest


def fails(call: Callable[[], object], *words: str) -> None:
    with pytest.raises(DataError) as caught:
        call()
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_it_is_never_guessed(shop: Path) -> None:
    fails(lambda: read_ratings(shop, events=1), "no item reaches a like", "weight of 5", "leave events out")
    fails(
        lambda: read_ratings(shop, events={"transaction": 5}),
        "has no weight for these kinds: view (3), addtocart (1)",
        'events={"transaction": 5, "view": 0}',
    )
    fails(
        lambda: read_ratings(shop, events={"transaction": 5, "view": 0, "addtocart": 0, "x": -1}),
        "events needs a weight",
    )
    (shop.parent / "no.csv").write_text("user,item,event\n1,2,view\n1,,view\n")
    fails(lambda: read_ratings(shop.parent / "no.csv", events=1.0), "no item, the first in line 3 of no.csv")
    (shop.parent / "plain.csv").write_text("user,item,time\n1,2,5\n")
    fails(
        lambda: read_ratings(shop.parent / "plain.csv", events={"view": 1}),
        "no column for event",
        'columns={"event": ...}',
    )
    (shop.parent / "none.csv").write_text("user,item,event\n")
    fails(lambda: read_ratings(shop.parent / "none.csv", events=1.0), "has no ratings")


def test_without_ratings_and_events_every_row_is_a_like(tmp_path: Path) -> None:
    path = tmp_path / "bought.csv"
    path.write_text("user,item,time\n1,2,5\n1,3,6\n2,2,7\n")
    ratings = read_ratings(path)
    assert len(ratings) == 3
    assert (ratings.rating >= 4).all()
    assert ratings.scale == (1, 5)
    assert any("every row is a like" in note for note in ratings.notes)
    assert "3 likes by 2 users" in ratings.summary()
    assert check_source("bought", path).usable
    in_memory = read_ratings(pa.table({"user": [1, 1], "item": [2, 3]}))
    assert (in_memory.rating >= 4).all()


@pytest.mark.parametrize("column", ["event", "action", "event type"])
def test_kinds_without_weights_are_likes_and_the_note_says_how_to_weigh_them(
    tmp_path: Path, column: str
) -> None:
    path = tmp_path / "shop.csv"
    path.write_text(f"user,item,{column}\n1,2,view\n1,3,buy\n1,3,view\n")
    ratings = read_ratings(path)
    assert len(ratings) == ratings.likes == 2
    assert "3 events became 2 likes" in ratings.notes[0]
    assert 'weigh its kinds with events={"view": 1, "purchase": 5}' in ratings.notes[0]
    assert check_source("shop", path).usable


def test_what_could_be_a_rating_is_not_read_as_likes(tmp_path: Path) -> None:
    path = tmp_path / "shop.csv"
    path.write_text("user,item,rating score\n1,2,view\n1,3,buy\n")
    fails(
        lambda: read_ratings(path),
        'did you mean columns={"rating": "rating score"}?',
        "count every row as a like: events=5",
    )
    assert len(read_ratings(path, events=5)) == 2


@pytest.mark.parametrize(
    "text", ["", "view", "view=", "view=x", "=1", "view=-1", "view=0", "nan", "view=inf", "0"]
)
def test_options_that_say_nothing(text: str) -> None:
    fails(lambda: ReadOptions([("events", text)]).for_each(["shop"]), "events")


def test_the_option() -> None:
    assert parse_events("view=1, purchase=5") == {"view": 1, "purchase": 5}
    assert parse_events("2.5") == 2.5
    assert parse_events("a=b=1") == {"a=b": 1}


def test_check_of_events(shop: Path) -> None:
    found = check_source("shop", shop, events={"view": 1, "addtocart": 3, "transaction": 5})
    assert found.usable
    assert found.shape is not None
    assert (found.shape.ratings, found.shape.users, found.shape.items) == (3, 2, 2)
    assert check_source("shop", shop).usable
    assert not check_source("shop", shop, events={"view": 1.0}).usable
