"""Matching of users: one spelling per user, rows over the union, seals that hold, and the curve."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import verfedgnn as vf
from verfedgnn.privacy import id_matching
from verfedgnn.privacy.id_matching import (
    _ORDER,
    POINT,
    CurveKey,
    Sealer,
    check_set,
    hash_points,
    make_pseudonyms,
    match_users,
    normalise_ids,
    select_unambiguous,
    sort_order,
)

FORMS = [
    ("17", "17"),
    ("", ""),
    (" \t ", ""),
    ("  Ann   Lee ", "ann lee"),
    ("Ann\u00a0Lee\u2003X", "ann lee x"),
    ("ann\n\tlee", "ann lee"),
    ("a\0b", "a b"),
    ("STRASSE", "strasse"),
    ("Straße", "strasse"),
    ("Ａｎｎ１", "ann1"),
    ("ﬁne", "fine"),
    ("E\u0301ve", "éve"),
    ("Éve", "éve"),
    ("\u01f0", "\u01f0"),
    ("\u0345", "ι"),
    ("Ann@X.org ", "ann@x.org"),
    ("mailto:ann@x.org", "ann@x.org"),
    ("MAILTO: ann@x.org", "ann@x.org"),
    ("Ann Lee <ann@x.org>", "ann@x.org"),
    ('"Lee, Ann" < Ann@x.org >', "ann@x.org"),
    ("ann@old.org <ann@x.org>", "ann@x.org"),
    ("Ann <mailto:ann@x.org>", "ann@x.org"),
    ("<ann@x.org>", "ann@x.org"),
    ("ann @ x.org", "ann@x.org"),
    ("ann＠x.org", "ann@x.org"),
    ("a\u00a8@x.org", "ä@x.org"),
    ("a.n.n+news@x.org", "a.n.n+news@x.org"),
    ("A.n.n+news@gmail.com", "ann@gmail.com"),
    ("ann@googlemail.com", "ann@gmail.com"),
    ("a.nn+x+y@GoogleMail.com", "ann@gmail.com"),
    ("ann@gmail.com.org", "ann@gmail.com.org"),
    ("+tag@gmail.com", "+tag@gmail.com"),
    ("...@gmail.com", "...@gmail.com"),
    ("@Ann", "@ann"),
    ("ann@", "ann@"),
    ("a@b@c", "a@b@c"),
    ("mailto:ann", "mailto:ann"),
    ("Ann <lee>", "ann <lee>"),
    ("1 < 2 @ 3", "1<2@3"),
]

texts = st.one_of(
    st.text(max_size=12),
    st.text(alphabet="aA.+@<> :ßİ\u0345\u0301¨ǰ\0", max_size=12),
    st.builds(
        "{}{}{}@{}{}".format,
        *[st.sampled_from(["", " ", "mailto:", "A <", "a.b", "+x", ">", "gmail.com", "X.org"])] * 5,
    ),
)


def ids(values: Any) -> NDArray[np.str_]:
    return np.array(list(values), np.str_)


@pytest.mark.parametrize(("text", "form"), FORMS)
def test_forms(text: str, form: str) -> None:
    assert normalise_ids(ids([text])).tolist() == [form]


@settings(max_examples=100)
@given(values=st.lists(texts, max_size=5))
def test_the_form_of_a_form_is_itself(values: list[str]) -> None:
    forms = normalise_ids(ids(values))
    assert forms.shape == (len(values),)
    np.testing.assert_array_equal(normalise_ids(forms), forms)


def test_no_code_point_changes_twice() -> None:
    points = ids(chr(point) for point in range(1, 0x30000) if not 0xD800 <= point < 0xE000)
    forms = normalise_ids(points)
    np.testing.assert_array_equal(normalise_ids(forms), forms)


def test_forms_that_collide_or_are_empty_are_left_out() -> None:
    forms, rows = select_unambiguous(
        ids(["Bob", "ann@gmail.com", " ", "eve", "A.nn@googlemail.com", "\tbob", "Dan"])
    )
    assert forms.tolist() == ["eve", "dan"]
    assert rows.tolist() == [3, 6]
    assert rows.dtype == np.int64


@given(values=st.lists(texts, max_size=8))
def test_unambiguous_forms_belong_to_one_row(values: list[str]) -> None:
    forms, rows = select_unambiguous(ids(values))
    every = normalise_ids(ids(values)).tolist()
    assert forms.tolist() == [every[row] for row in rows]
    assert set(rows.tolist()) == {row for row, form in enumerate(every) if form and every.count(form) == 1}


@given(values=st.lists(st.binary(max_size=20), max_size=6), key=st.binary(min_size=1, max_size=80))
def test_pseudonyms_are_truncated_hmac(values: list[bytes], key: bytes) -> None:
    made = make_pseudonyms(values, key)
    assert made.dtype == np.uint8
    assert made.shape == (len(values), 16)
    assert [row.tobytes() for row in made] == [hmac.digest(key, text, "sha256")[:16] for text in values]


rows = st.one_of(
    st.binary(min_size=16, max_size=16),
    st.sampled_from([bytes(16), bytes(15) + b"\1", b"\1" + bytes(15), b"\xff" * 16]),
)


def as_array(members: list[bytes]) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(members), np.uint8).reshape(-1, 16)


@given(members=st.lists(rows, max_size=8))
def test_the_order_of_rows_is_that_of_bytes(members: list[bytes]) -> None:
    array = as_array(members)
    assert [row.tobytes() for row in array[sort_order(array)]] == sorted(members)


@settings(max_examples=80)
@given(data=st.data(), pool=st.sets(rows, min_size=1, max_size=8), count=st.integers(2, 5))
def test_rows_are_those_of_the_sets(data: st.DataObject, pool: set[bytes], count: int) -> None:
    """Against Python's sets: equal pseudonyms get equal rows, all rows are used, and the rule holds."""
    members = st.sets(st.sampled_from(sorted(pool)))
    sets = [sorted(data.draw(members)) for _ in range(count)]
    fewest = data.draw(st.integers(1, count))
    times = {one: sum(one in each for each in sets) for one in pool}
    found, users = match_users([as_array(one) for one in sets], fewest)
    if max(times.values()) < 2:
        assert users == 0
        return
    expected = {one for one, many in times.items() if many >= fewest}
    row_of = {
        one: int(row)
        for each, own in zip(sets, found, strict=True)
        for one, row in zip(each, own, strict=True)
    }
    assert users == len(expected)
    assert {one for one, row in row_of.items() if row >= 0} == expected
    assert sorted(row for row in row_of.values() if row >= 0) == list(range(users))
    for each, own in zip(sets, found, strict=True):
        assert [row_of[one] for one in each] == own.tolist()


def column(*values: int) -> NDArray[np.uint8]:
    return np.repeat(np.array(values, np.uint8)[:, None], 16, axis=1)


@pytest.mark.parametrize(
    ("fewest", "users", "taking_part"),
    [(1, 7, [4, 3, 4]), (2, 2, [2, 2, 2]), (3, 2, [2, 2, 2])],
)
def test_rows_of_three_sets_by_hand(fewest: int, users: int, taking_part: list[int]) -> None:
    rows, count = match_users([column(1, 2, 5, 9), column(2, 3, 9), column(0, 2, 4, 9)], fewest)
    assert count == users
    assert [int((own >= 0).sum()) for own in rows] == taking_part


def test_the_order_of_rows_is_random() -> None:
    """Two random orders of 200 users agree with probability 1 in 200!."""
    one = as_array(sorted(bytes([n]) * 16 for n in range(200)))
    first, second = (match_users([one, one], 1)[0][0] for _ in range(2))
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, np.arange(200))


@pytest.mark.parametrize(
    "bad",
    [
        as_array([b"b" * 16, b"a" * 16]),
        as_array([b"a" * 16, b"a" * 16]),
        np.zeros((2, 8), np.uint8),
        np.zeros(16, np.uint8),
        np.zeros((1, 16), np.int8),
        np.zeros((1, 16), np.float64),
    ],
)
def test_sets_that_are_not_sorted_pseudonyms_are_refused(bad: NDArray[Any]) -> None:
    with pytest.raises(vf.ProtocolError, match="pseudonyms"):
        check_set(bad)


@given(data=st.binary(max_size=200), context=st.binary(max_size=20))
def test_what_is_sealed_opens_for_its_receiver(data: bytes, context: bytes) -> None:
    ann, bob = Sealer(), Sealer()
    sealed = ann.seal(bob.public, context, data)
    assert len(sealed) == len(data) + 28
    assert bob.open(ann.public, context, sealed) == data
    assert ann.seal(bob.public, context, data) != sealed


def test_a_seal_opens_nowhere_else() -> None:
    ann, bob, eve = Sealer(), Sealer(), Sealer()
    sealed = ann.seal(bob.public, b"key of alignment 7", b"secret")
    attempts: list[Callable[[], bytes]] = [
        lambda: bob.open(ann.public, b"key of alignment 8", sealed),
        lambda: bob.open(eve.public, b"key of alignment 7", sealed),
        lambda: eve.open(ann.public, b"key of alignment 7", sealed),
        lambda: ann.open(bob.public, b"key of alignment 7", sealed),  # sent back to its sender
        lambda: bob.open(ann.public, b"key of alignment 7", sealed[:-1]),
        lambda: bob.open(ann.public, b"key of alignment 7", b"short"),
        lambda: bob.open(ann.public, b"key of alignment 7", b""),
    ]
    for attempt in attempts:
        with pytest.raises(vf.ProtocolError, match="sealed message"):
            attempt()


@given(place=st.integers(0, 33), bit=st.integers(0, 7))
def test_a_seal_with_one_bit_changed_is_refused(place: int, bit: int) -> None:
    ann, bob = Sealer(), Sealer()
    sealed = bytearray(ann.seal(bob.public, b"", b"secret"))
    sealed[place] ^= 1 << bit
    with pytest.raises(vf.ProtocolError, match="sealed message") as refusal:
        bob.open(ann.public, b"", bytes(sealed))
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize("key", ["", "zz", "00" * 31, "00" * 32])
def test_keys_that_are_no_points_are_refused(key: str) -> None:
    with pytest.raises(vf.ProtocolError, match="not usable"):
        Sealer().seal(key, b"", b"")


def test_a_relay_that_mirrors_the_own_key_is_refused() -> None:
    ann = Sealer()
    with pytest.raises(vf.ProtocolError, match="another"):
        ann.seal(ann.public, b"", b"")


@pytest.fixture
def psi() -> None:
    pytest.importorskip("private_set_intersection.python", reason="openmined-psi is not installed")


@pytest.mark.usefixtures("psi")
def test_equal_ids_become_equal_points_once_all_keys_are_applied() -> None:
    """Two keyholders and a third party: only the product of the keyholders' keys remains."""
    first, second, own = CurveKey(), CurveKey(), CurveKey()
    ours = own.remove(second.apply(first.apply(own.blind([b"ann", b"bob"]))))
    theirs = second.apply(first.blind([b"bob", b"carl", b"ann"]))
    points = [theirs[start : start + POINT] for start in range(0, len(theirs), POINT)]
    assert ours == points[2] + points[0]
    assert first.apply(second.blind([b"bob"])) == points[0]
    assert hash_points(ours).shape == (2, 16)
    assert own.blind([b"ann"]) != first.blind([b"ann"])


@pytest.mark.usefixtures("psi")
def test_every_key_can_be_removed() -> None:
    """Also a key whose bytes begin with a zero, as one in 256 does, and one whose inverse does."""
    other = CurveKey()
    points = other.blind([b"ann"])
    zero = b"\0" + other._key[1:]
    inverse = pow(int.from_bytes(zero), -1, _ORDER).to_bytes(32)
    for chosen in (None, zero, zero[1:], inverse):
        key = CurveKey()
        key._key = chosen or key._key
        assert key.remove(key.apply(points)) == points


@pytest.mark.usefixtures("psi")
@pytest.mark.parametrize("points", [b"\xff" * POINT, b"\0" * POINT, b"\2" + b"\xff" * (POINT - 1), b"short"])
def test_what_is_no_point_of_the_curve_is_refused(points: bytes) -> None:
    with pytest.raises(vf.ProtocolError, match="point"):
        CurveKey().apply(points)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(id_matching, "import_module", missing)
    with pytest.raises(vf.ConfigError, match=r"in a checkout: pip install '\.\[psi\]'"):
        CurveKey()
