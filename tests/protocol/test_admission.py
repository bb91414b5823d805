"""The rules of joining: everything that must be the same, and the reason given when it is not."""

from __future__ import annotations

from typing import Any

import pytest

import verfedgnn as vf
from verfedgnn.protocol.coordinator import Coordinator
from verfedgnn.protocol.messages import Hello

CONFIG = vf.Config.preset("paper", masking=True)
HELLO = Hello(
    party="film",
    users=100,
    items=30,
    ratings=900,
    scale=(1.0, 5.0),
    config=CONFIG.digest(),
    agreement="abc",
    alignment="xyz",
    mask_key="0" * 64,
)
BOOK = HELLO.model_copy(update={"party": "book", "items": 40})


def why(
    joined: dict[str, Hello] | None = None, digests: dict[int, str] | None = None, **changes: Any
) -> str | None:
    coordinator = Coordinator(CONFIG, ["film", "book", "music"], agreement="abc", training="t1")
    coordinator.members.hellos = dict(joined or {})
    coordinator.best.digests = dict(digests or {})
    try:
        coordinator.hello(HELLO.model_copy(update=changes))
    except vf.ProtocolError as error:
        return str(error)
    return None


def test_whoever_fits_joins() -> None:
    assert why() is None
    assert why({"book": BOOK}) is None
    assert why({"film": HELLO, "book": BOOK}, {7: "aa"}, training="t1", round=7, digest="aa") is None
    assert why(digests={7: "aa"}, round=8, digest="bb") is None, (
        "a round whose hash is not known here says nothing"
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"config": "other"}, "configuration differs"),
        ({"agreement": "other"}, "federation file"),
        ({"agreement": None}, "federation file"),
        ({"training": "t2"}, "belongs to training t2, this one is t1"),
        ({"round": 7, "digest": "bb"}, "public parameters of round 7"),
        ({"mask_key": None}, "key for masks"),
        ({"scale": (5.0, 1.0)}, "upside down"),
        ({"users": 99}, "99 common users, book has 100"),
        ({"alignment": "other"}, "aligned differently from those of book"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(changes: dict[str, Any], reason: str) -> None:
    answer = why({"book": BOOK}, {7: "aa"}, **changes)
    assert answer is not None
    assert reason in answer


@pytest.mark.parametrize("change", [{"items": 31}, {"ratings": 901}, {"scale": (1.0, 6.0)}])
def test_who_comes_back_must_be_the_same(change: dict[str, Any]) -> None:
    answer = why({"film": HELLO}, **change)
    assert answer is not None
    assert "go back to that data or begin a new training" in answer


def test_another_version_is_refused_by_both_sides() -> None:
    from verfedgnn.protocol.messages import VERSION, decode, encode

    data = bytearray(encode(HELLO))
    data[4] = VERSION + 1
    with pytest.raises(vf.ProtocolError, match=f"speaks protocol version {VERSION + 1}, this side {VERSION}"):
        decode(bytes(data))
