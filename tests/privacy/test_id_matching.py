"""User alignment: one spelling per user, common users equal to the sets' intersection, seals that hold, PSI in both roles."""

from __future__ import annotations

import hashlib
import hmac
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import verfedgnn as vf
from verfedgnn.privacy import id_matching as alignment
from verfedgnn.privacy.id_matching import (
    PsiClient,
    PsiServer,
    Sealer,
    common,
    order_of_rows,
    pseudonyms,
    workers,
)
from verfedgnn.privacy.identifiers import normalised, unambiguous

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
    assert normalised(ids([text])).tolist() == [form]


@settings(max_examples=250)
@given(values=st.lists(texts, max_size=5))
def test_the_form_of_a_form_is_itself(values: list[str]) -> None:
    forms = normalised(ids(values))
    assert forms.shape == (len(values),)
    np.testing.assert_array_equal(normalised(forms), forms)


def test_no_code_point_changes_twice() -> None:
    points = ids(chr(point) for point in range(1, 0x30000) if not 0xD800 <= point < 0xE000)
    forms = normalised(points)
    np.testing.assert_array_equal(normalised(forms), forms)


def test_forms_that_collide_or_are_empty_are_left_out() -> None:
    forms, rows = unambiguous(
        ids(["Bob", "ann@gmail.com", " ", "eve", "A.nn@googlemail.com", "\tbob", "Dan"])
    )
    assert forms.tolist() == ["eve", "dan"]
    assert rows.tolist() == [3, 6]
    assert rows.dtype == np.int64


@given(values=st.lists(texts, max_size=8))
def test_unambiguous_forms_belong_to_one_row(values: list[str]) -> None:
    forms, rows = unambiguous(ids(values))
    every = normalised(ids(values)).tolist()
    assert forms.tolist() == [every[row] for row in rows]
    assert set(rows.tolist()) == {row for row, form in enumerate(every) if form and every.count(form) == 1}


@given(values=st.lists(st.text(max_size=20), max_size=6), key=st.binary(min_size=1, max_size=80))
def test_pseudonyms_are_truncated_hmac(values: list[str], key: bytes) -> None:
    column = ids(values)
    made = pseudonyms(column, key)
    assert made.dtype == np.uint8
    assert made.shape == (len(values), 16)
    assert [row.tobytes() for row in made] == [
        hmac.digest(key, text.encode(), "sha256")[:16] for text in column.tolist()
    ]


rows = st.one_of(
    st.binary(min_size=16, max_size=16),
    st.sampled_from([bytes(16), bytes(15) + b"\1", b"\1" + bytes(15), b"\xff" * 16]),
)


def as_array(members: list[bytes]) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(members), np.uint8).reshape(-1, 16)


@given(members=st.lists(rows, max_size=8))
def test_the_order_of_rows_is_that_of_bytes(members: list[bytes]) -> None:
    array = as_array(members)
    assert [row.tobytes() for row in array[order_of_rows(array)]] == sorted(members)


@settings(max_examples=200)
@given(data=st.data(), pool=st.sets(rows, max_size=8), count=st.integers(0, 5))
def test_common_rows_are_those_of_the_sets_intersection(
    data: st.DataObject, pool: set[bytes], count: int
) -> None:
    members = st.sets(st.sampled_from(sorted(pool))) if pool else st.just(set[bytes]())
    sets = [sorted(data.draw(members)) for _ in range(count)]
    expected = set[bytes]().union(*sets).intersection(*map(set, sets))
    held = common([as_array(one) for one in sets])
    assert len(held) == count
    for one, mask in zip(sets, held, strict=True):
        assert mask.tolist() == [row in expected for row in one]


def test_common_of_three_sets_by_hand() -> None:
    column = [[1, 2, 5, 9], [2, 3, 9], [0, 2, 4, 9]]
    held = common([np.repeat(np.array(c, np.uint8)[:, None], 16, axis=1) for c in column])
    assert [mask.tolist() for mask in held] == [
        [False, True, False, True],
        [True, False, True],
        [False, True, False, True],
    ]


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
        common([as_array([b"a" * 16]), bad])


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


def intersected(client: PsiClient, server: PsiServer) -> list[bool]:
    held: list[bool] = client.intersection(*server.answer(client.request())).tolist()
    return held


@pytest.mark.usefixtures("psi")
@settings(max_examples=25)
@given(pool=st.sets(st.text(max_size=9).map(lambda text: text.rstrip("\0")), max_size=12), data=st.data())
def test_the_client_learns_the_intersection(pool: set[str], data: st.DataObject) -> None:
    members = st.sets(st.sampled_from(sorted(pool))) if pool else st.just(set[str]())
    ours, theirs, buckets = data.draw(members), data.draw(members), data.draw(st.integers(1, 4))
    column = ids(ours)
    held = intersected(PsiClient(column, buckets), PsiServer(ids(theirs), buckets))
    assert held == [text in theirs for text in column.tolist()]


@pytest.mark.usefixtures("psi")
@pytest.mark.parametrize(
    ("ours", "theirs", "held"),
    [
        (["ann", "bob", "eve"], ["dan", "eve", "ann"], [True, False, True]),
        (["ann", "bob"], ["eve", "dan"], [False, False]),
        (["ann"], [], [False]),
        ([], ["ann"], []),
        ([], [], []),
    ],
)
def test_intersections_by_hand(ours: list[str], theirs: list[str], held: list[bool]) -> None:
    assert intersected(PsiClient(ids(ours), 3), PsiServer(ids(theirs), 3)) == held


@pytest.mark.usefixtures("psi")
def test_several_processes_find_what_one_finds() -> None:
    ours, theirs = [f"user {i}" for i in range(300)], [f"user {i}" for i in range(0, 600, 2)]
    with workers(2) as each:
        held = intersected(PsiClient(ids(ours), 4, each), PsiServer(ids(theirs), 4, each))
        client = PsiClient(ids(ours), 4, each)
        with pytest.raises(vf.ProtocolError, match="malformed"):
            client.intersection([b"\xff"] * 4, [b"\xff"] * len(client.request()))
    assert held == [i % 2 == 0 for i in range(300)]


@pytest.mark.usefixtures("psi")
def test_sizes_of_messages_depend_on_the_number_of_ids_only() -> None:
    first, second = (PsiClient(ids(f"{name}{i}" for i in range(400)), 4).request() for name in ("ann", "bob"))
    assert len({len(message) for message in (*first, *second)}) == 1
    assert len({*first, *second}) == 8


@pytest.mark.parametrize("count", [0, 1, 5, 1000, 20_000])
def test_buckets_hold_every_id_once_and_are_full(count: int) -> None:
    column = ids(map(str, range(count)))
    elements, rows = alignment._bucketed(column, 8)
    assert sorted(np.concatenate(rows).tolist()) == list(range(count))
    assert len({len(bucket) for bucket in elements}) == 1
    assert sum(map(len, elements)) <= 1.25 * count + 8 * 40
    for bucket, own in zip(elements, rows, strict=True):
        assert bucket[: len(own)] == [hashlib.sha256(text.encode()).digest() for text in column[own].tolist()]
    assert len({element for bucket in elements for element in bucket}) == sum(map(len, elements))


def test_ids_made_to_meet_in_one_bucket_still_fit() -> None:
    meet = [
        text
        for text in map(str, range(4000))
        if int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) % 8 == 3
    ]
    elements, rows = alignment._bucketed(ids(meet), 8)
    assert [len(own) for own in rows] == [0, 0, 0, len(meet), 0, 0, 0, 0]
    assert {len(bucket) for bucket in elements} == {len(meet)}


@pytest.mark.usefixtures("psi")
def test_ids_that_repeat_are_refused() -> None:
    with pytest.raises(vf.DataError, match="twice"):
        PsiClient(ids(["ann", "bob", "ann"]), 2)


@pytest.mark.usefixtures("psi")
def test_messages_of_another_shape_are_refused() -> None:
    client, server = PsiClient(ids(["ann", "bob"]), 2), PsiServer(ids(["ann"]), 2)
    with pytest.raises(vf.ProtocolError, match="as many buckets"):
        client.intersection([b"", b""], [b"", b""])  # nothing was requested yet
    requests = client.request()
    setups, responses = server.answer(requests)
    with pytest.raises(vf.ProtocolError, match="as many buckets"):
        server.answer(requests[:1])
    with pytest.raises(vf.ProtocolError, match="as many buckets"):
        client.intersection(setups, responses[:1])
    with pytest.raises(vf.ProtocolError, match="not one to this request"):
        client.intersection(setups, [responses[0], b""])
    with pytest.raises(vf.ProtocolError, match="not one to this request"):
        client.intersection([b"", b""], responses)
    with pytest.raises(vf.ProtocolError, match="malformed"):
        server.answer([requests[0], b""])


@pytest.mark.usefixtures("psi")
def test_a_filter_that_claims_every_id_is_refused() -> None:
    psi = pytest.importorskip("private_set_intersection.python")
    client = PsiClient(ids(["ann"]), 1)
    _, responses = PsiServer(ids([]), 1).answer(client.request())
    full = psi.ServerSetup()
    full.bloom_filter.num_hash_functions, full.bloom_filter.bits = 1, b"\xff" * 8
    with pytest.raises(vf.ProtocolError, match="not one to this request"):
        client.intersection([full.SerializeToString()], responses)


@pytest.mark.usefixtures("psi")
def test_garbled_messages_are_refused_or_change_nothing_else() -> None:
    """Bytes changed at random: either refused, or an answer of the right shape; never another error."""
    chance = random.Random(0)
    client, server = PsiClient(ids(["ann", "bob", "eve"]), 1), PsiServer(ids(["ann", "dan"]), 1)
    refused = 0
    for _ in range(80):
        request = client.request()
        messages = [request, *server.answer(request)]
        message = messages[chance.randrange(3)]
        garbled = bytearray(message[0])
        for _ in range(chance.randint(1, 3)):
            garbled[chance.randrange(len(garbled))] = chance.randrange(256)
        message[0] = bytes(garbled[: chance.choice([len(garbled), chance.randrange(len(garbled))])])
        try:
            server.answer(messages[0])
            assert client.intersection(messages[1], messages[2]).shape == (3,)
        except vf.ProtocolError:
            refused += 1
    assert refused > 40


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(alignment, "import_module", missing)
    with pytest.raises(vf.ConfigError, match=r"pip install 'verfedgnn\[psi\]'"):
        PsiServer(ids(["ann"]), 1)
