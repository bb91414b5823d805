"""Ratings, duplicates and the ways from tables to parties."""

import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import make_ratings
from verfedgnn.core.errors import DataError
from verfedgnn.data import (
    PartyData,
    align_users,
    check_parties,
    read_parties,
    read_ratings,
    split_items,
    synthetic_ratings,
)
from verfedgnn.data.ids import spell
from verfedgnn.data.parties import parties_from_tables
from verfedgnn_research.baselines.pooled_parties import find_pooled_items, pool_parties


def rows(ratings):
    users, items = ratings.user_ids[ratings.user].tolist(), ratings.item_ids[ratings.item].tolist()
    return set(zip(users, items, ratings.rating.tolist(), strict=True))


@pytest.mark.parametrize(
    ("duplicates", "kept", "note"),
    [
        ("first", {("a", "x", 1.0), ("b", "x", 5.0)}, "kept the first"),
        ("last", {("a", "x", 3.0), ("b", "x", 5.0)}, "kept the last"),
        ("mean", {("a", "x", 2.0), ("b", "x", 5.0)}, "took the mean rating"),
    ],
)
def test_duplicates(duplicates, kept, note):
    ratings = make_ratings(
        list("abaa"), ["x"] * 4, [1.0, 5.0, 2.0, 3.0], time=[1, 2, 3, 4], duplicates=duplicates
    )
    assert rows(ratings) == kept
    assert ratings.notes == (f"2 rows repeat a (user, item) pair: {note}",)
    assert len(ratings.time) == 2


def test_the_last_of_repeats_is_the_newest_and_among_equal_times_the_last_row():
    ratings = make_ratings(
        list("aaabbc"), ["x"] * 6, [1.0, 5.0, 2.0, 3.0, 4.0, 1.0], time=[1, 3, 2, 7, 7, 5], duplicates="last"
    )
    assert rows(ratings) == {("a", "x", 5.0), ("b", "x", 4.0), ("c", "x", 1.0)}
    assert ratings.time.tolist() == [3, 7, 5]


def test_ids_are_ordered_as_numbers_or_as_text():
    numbers = make_ratings([10, 9, -1], ["10", "9", "09"], np.ones(3))
    assert numbers.user_ids.tolist() == ["-1", "9", "10"]
    assert numbers.item_ids.tolist() == ["09", "9", "10"]
    assert make_ratings(["10", "9", "é", "z"], range(4), np.ones(4)).user_ids.tolist() == [
        "10",
        "9",
        "z",
        "é",
    ]


def test_take_and_select():
    ratings = make_ratings(
        list("abc"), list("xyx"), [1, 2, 3], titles=["X", "Y", ""], columns={"k": ["", "q", "p"]}
    )
    assert ratings.columns["k"].tolist() == ["p", "q"]
    assert rows(ratings.take(ratings.rating > 1)) == {("b", "y", 2.0), ("c", "x", 3.0)}
    only = ratings.select_items(np.array([1]))
    assert (rows(only), only.n_users, only.titles.tolist(), only.columns["k"].tolist()) == (
        {("b", "y", 2.0)},
        3,
        ["Y"],
        ["q"],
    )
    assert rows(ratings.select_users(np.array([False, False, True]))) == {("c", "x", 3.0)}
    assert ratings.summary() == "ratings: 3 ratings (1 to 3) by 3 users on 2 items"


@given(st.integers(5, 40), st.integers(1, 12), st.integers(0, 3))
def test_random_parties_are_near_equal_and_lose_nothing(items, count, seed):
    ratings = synthetic_ratings(users=12, items=items, ratings=80, seed=seed, categories=2)
    parties = split_items(ratings, min(count, items), seed=seed)
    check_parties(parties)
    sizes = [party.ratings.n_items for party in parties]
    assert max(sizes) - min(sizes) <= 1
    assert set().union(*(rows(party.ratings) for party in parties)) == rows(ratings)
    pooled = pool_parties(parties)
    assert rows(pooled) == rows(ratings)
    assert (pooled.user_ids == ratings.user_ids).all()
    assert (pooled.item_ids == ratings.item_ids).all()
    assert (pooled.titles == ratings.titles).all()
    assert (pooled.columns["category"] == ratings.columns["category"]).all()


def test_names_sort_and_seeds_matter():
    ratings = synthetic_ratings(users=30, items=40, ratings=300)
    names = [party.name for party in split_items(ratings, 12)]
    assert names == sorted(names)
    assert names[:2] == ["party-00", "party-01"]
    assert split_items(ratings, 3)[0].name == "party-0"
    first = [split_items(ratings, 4, seed=seed)[0].ratings.item_ids.tolist() for seed in (0, 0, 1)]
    assert first[0] == first[1] != first[2]


def test_parties_by_column():
    ratings = make_ratings(list("abc"), list("xyz"), [1, 2, 3], columns={"genre": ["b", "", "a"]})
    parties = split_items(ratings, by="genre")
    assert [(party.name, party.ratings.item_ids.tolist()) for party in parties] == [
        ("a", ["z"]),
        ("b", ["x"]),
        ("unknown", ["y"]),
    ]
    assert all(party.ratings.n_users == 3 for party in parties)


user_sets = st.lists(
    st.sets(st.integers(0, 20).map(lambda n: f"{n * 37 % 100}"), min_size=1), min_size=1, max_size=4
)


@given(user_sets, st.sampled_from(["any", "all", 2]))
def test_aligned_parties_have_the_users_of_the_rule_and_all_their_ratings(sets, rule):
    fewest = {"any": 1, "all": len(sets), 2: min(2, len(sets))}[rule]
    rule = "any" if rule == 2 and len(sets) == 1 else rule
    times = Counter(user for users in sets for user in users)
    chosen = {user for user, many in times.items() if many >= fewest} | {"1000"}
    parties = [
        PartyData(
            f"p{k}",
            make_ratings(
                [*users, "1000"], [f"{k}-{n % 2}" for n in range(len(users) + 1)], np.ones(len(users) + 1)
            ),
        )
        for k, users in enumerate(sets)
    ]
    aligned = align_users(parties, rule)
    check_parties(aligned)
    for before, after in zip(parties, aligned, strict=True):
        assert after.ratings.user_ids.tolist() == sorted(chosen, key=int)
        assert rows(after.ratings) == {row for row in rows(before.ratings) if row[0] in chosen}
        dropped = set(before.ratings.user_ids.tolist()) - chosen
        assert bool(after.ratings.notes) == bool(dropped)
    again = align_users(aligned)
    assert all(rows(x.ratings) == rows(y.ratings) for x, y in zip(aligned, again, strict=True))


def test_a_number_of_parties_that_cannot_be_reached_is_refused():
    parties = [PartyData(name, make_ratings(["1"], [name], [1.0])) for name in "ab"]
    for rule, reason in ((3, "there are only 2 parties"), (1, "from 2"), ("every", "any, all or a number")):
        with pytest.raises(DataError, match=reason):
            align_users(parties, rule)


def test_party_files(tmp_path):
    one, two = tmp_path / "books.csv", tmp_path / "music.tsv"
    one.write_text("user,item,rating\nanna,x,5\nben,y,3\nben,z,3\n")
    two.write_text("user\titem\trating\nanna\tq\t1\ncarl\tq\t4\n")
    for parties in (
        read_parties([str(one), str(two)]),
        read_parties(tmp_path),
        read_parties({"books": one, "music": two}),
    ):
        assert [party.name for party in parties] == ["books", "music"]
        assert [party.ratings.name for party in parties] == ["books", "music"]
        assert all(party.ratings.user_ids.tolist() == ["anna", "ben", "carl"] for party in parties)
        assert [party.ratings.user.tolist() for party in parties] == [[0, 1, 1], [0, 2]]
        assert not parties[0].ratings.notes
        assert parties[0].ratings.scale == parties[1].ratings.scale == (1, 5)
    books, music = read_parties(tmp_path, users="all")
    assert books.ratings.user_ids.tolist() == music.ratings.user_ids.tolist() == ["anna"]
    note = "kept 1 of 2 users; 2 ratings of users who are not at every party were dropped"
    assert books.ratings.notes == (note,)
    named = read_parties([f"b={one}", f"m={two}"])
    assert [party.name for party in named] == ["b", "m"]
    assert [party.name for party in read_parties([f"only={one}"])] == ["only"]


def test_read_parties_splits_one_table():
    parties = read_parties("synthetic", parties=4, seed=3)
    assert [party.name for party in parties] == ["party-0", "party-1", "party-2", "party-3"]
    assert [party.name for party in read_parties("synthetic", by="category")] == ["album", "book", "film"]


def test_small_values_of_a_column_go_together():
    ratings = synthetic_ratings(users=50, items=60, ratings=900, seed=1)
    column = np.where(np.arange(60) == 3, "rare", np.where(np.arange(60) < 30, "film", "book"))
    lone = replace(ratings, columns={"kind": column}).take(
        ~((ratings.item == 3) & (np.arange(len(ratings)) % 5 > 0))
    )
    parties = split_items(lone, by="kind")
    assert {p.name for p in parties} in ({"film", "other"}, {"book", "other"})
    assert sum(len(p.ratings) for p in parties) == len(lone)
    assert [p.name for p in parties if any("put together" in note for note in p.ratings.notes)] == ["other"]


def test_parties_with_other_stars_keep_their_scale(tmp_path):
    for name, best in (("film", 10), ("book", 5), ("music", 4)):
        rows = "".join(f"u{u},{name}{i},{1 + (u + i) % best}\n" for u in range(12) for i in range(6))
        (tmp_path / f"{name}.csv").write_text("user,item,rating\n" + rows)
    scales = {p.name: p.ratings.scale for p in read_parties([tmp_path / "film.csv", tmp_path / "book.csv"])}
    assert scales == {"film": (1, 10), "book": (1, 5)}
    scales = {p.name: p.ratings.scale for p in read_parties([tmp_path / "music.csv", tmp_path / "book.csv"])}
    assert scales == {"music": (1, 5), "book": (1, 5)}


@pytest.mark.parametrize(("one", "other"), [((-5, 0), (-3, 0)), ((-5, -1), (-3, -2)), ((0, 0), (0, 0))])
def test_parties_without_a_rating_above_zero_share_a_scale(one, other):
    tables = [
        make_ratings(["u", "v"], [f"{name}1", f"{name}2"], scale, name=name)
        for name, scale in (("a", one), ("b", other))
    ]
    assert [p.ratings.scale for p in parties_from_tables(tables)] == [(one[0], max(one[1], other[1]))] * 2


def test_an_id_that_two_parties_use_means_two_items() -> None:
    a = PartyData("a", make_ratings(["1", "2"], ["x", "y"], [1.0, 2.0]))
    b = PartyData("b", make_ratings(["1", "2"], ["y", "z"], [3.0, 4.0]))
    check_parties([a, b])
    pool = pool_parties([a, b])
    assert list(pool.item_ids) == ["a: x", "a: y", "b: y", "b: z"]
    first, second = find_pooled_items([a, b], pool)
    assert (list(first), list(second)) == ([0, 1], [2, 3])
    assert list(pool.rating) == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("write", "way"),
    [
        (lambda n: f"{n:08d}", "number"),
        (lambda n: f"{n}.0", "number"),
        (lambda n: f" {n}", None),
    ],
)
def test_a_party_with_other_spellings_is_refused_with_the_option_that_mends_it(tmp_path, write, way):
    """One of three shops writes ids in another way: without a word it would share nobody."""
    for name in ("film", "book", "album"):
        lines = [f"{write(n) if name == 'book' else n},{name}{n % 7},{1 + n % 5}" for n in range(1, 60)]
        (tmp_path / f"{name}.csv").write_text("user,item,rating\n" + "\n".join(lines) + "\n")
    sources = [f"{file.stem}={file}" for file in tmp_path.glob("*.csv")]
    if way is not None:
        with pytest.raises(DataError, match=r"book shares 0 of its 59 users .*, but 59 if .* leading zeros"):
            read_parties(sources)
    parties = read_parties(sources, **({} if way is None else {"ids": way}))
    assert all(party.ratings.n_users == 59 for party in parties)


def test_the_domains_of_mail_addresses_are_recognised():
    shops = {name: ([f"Ann{n}@{name}.org" for n in range(30)], ["x"] * 30, [5] * 30) for name in ("a", "b")}
    with pytest.raises(DataError, match="domains of mail addresses"):
        read_parties(shops)
    assert read_parties(shops, ids="mail")[0].ratings.n_users == 30


def test_spellings_that_differ_in_several_ways_are_tried_together():
    users = {"film": [f"Cust {n:05d}" for n in range(30)], "book": [f"cust{n}" for n in range(30)]}
    shops = {name: (ids, ["x"] * 30, [5] * 30) for name, ids in users.items()}
    with pytest.raises(
        DataError, match=r"but 30 if .* capitals or spaces and leading zeros .*ids=\"lower\+number"
    ):
        read_parties(shops)
    assert read_parties(shops, ids="lower+number")[0].ratings.n_users == 30


def test_ids_that_would_become_one_are_an_error():
    with pytest.raises(DataError, match="1 user would have the id of another"):
        read_ratings((["7", "07"], ["x", "y"], [5, 4]), ids="number")
    with pytest.raises(DataError, match="no spelling of ids; use mail, lower, number"):
        read_ratings((["7"], ["x"], [5]), ids="roman")


def test_a_mail_address_without_a_name_keeps_its_domain() -> None:
    assert spell(np.array(["@a.org", "Bob@a.org"]), "mail").tolist() == ["@a.org", "bob"]


def test_a_long_number_is_spelled_at_once() -> None:
    """A server spells ids of strangers; trying all ways to divide the zeros took seconds."""
    begin = time.process_time()
    long = "0" * 20_000 + "x"
    assert spell(np.array([long, "00", "007.0", "a07"]), "number").tolist() == [long, "0", "7", "a7"]
    assert time.process_time() - begin < 1
