"""The paragraph about lift: whole sentences for every result, and the right verdict."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import pytest

from verfedgnn.evaluation.verdict import deciding_figures, headline, summarise, verdict

RESULTS = ("yes", "no", "cannot tell", None)
"""Verdicts, and None where there are no cases."""
PERCENT = {"yes": 4.2, "no": -3.1, "cannot tell": 0.4}


def row(pays: str | None, **values: Any) -> dict[str, Any]:
    if pays is None:
        return {"cases": 0, "users": 0, "gain": None, "pays": "cannot tell", **values}
    return {
        "cases": 12_345,
        "simple": 1.1,
        "alone": 1.05,
        "federated": 0.9,
        "users": 1_234,
        "gain": {
            "value": 0.01,
            "percent": PERCENT[pays],
            "low_percent": PERCENT[pays] - 1.6,
            "high_percent": PERCENT[pays] + 1.4,
        },
        "pays": pays,
        **values,
    }


def tables(
    metric: str, known: str | None, new: str | None, parties: tuple[str | None, ...] = (), bands: str = ""
) -> dict[str, Any]:
    named = [row(pays, name=f"shop {number}") for number, pays in enumerate(parties)]
    letters = {"y": "yes", "n": "no", "c": "cannot tell", "-": None}
    activity = [row(letters[band], **{"from": 10 * place}) for place, band in enumerate(bands)]
    return {
        "metric": metric,
        "overall": row(known),
        "parties": named,
        "by_own_ratings": activity,
        "newcomers": {"metric": metric, "overall": row(new), "parties": named},
    }


def lift(
    ratings: tuple[str | None, str | None], lists: tuple[str | None, str | None] | None
) -> dict[str, Any]:
    found = tables("rmse", *ratings)
    return found if lists is None else found | {"lists": tables("ndcg@20", *lists)}


def check_sentences(text: str) -> list[str]:
    """Assert that a paragraph has whole sentences only, and return them."""
    assert not re.search(r"None|nan|  | ,|\(\)|\{|\}", text), text
    sentences = re.split(r"(?<=\.) (?=[A-Z])", text)
    for sentence in sentences:
        assert re.match(r"[A-Z].*[a-z)]\.$", sentence), sentence
        assert sentence.count("(") == sentence.count(")"), sentence
    return sentences


@pytest.mark.parametrize("lists", [None, *product(RESULTS, RESULTS)])
def test_every_result_gives_whole_sentences(lists: tuple[str | None, str | None] | None) -> None:
    for ratings in product(RESULTS, RESULTS):
        sentences = check_sentences(summarise(lift(ratings, lists)))
        assert len(sentences) >= (3 if lists is None else 5)


@pytest.mark.parametrize("parties", list(product(RESULTS, repeat=2)))
@pytest.mark.parametrize("overall", RESULTS)
def test_parties_that_differ_are_named(overall: str | None, parties: tuple[str | None, ...]) -> None:
    text = summarise(tables("rmse", overall, overall, parties))
    check_sentences(text)
    opposite = {"yes": "no", "no": "yes"}.get(overall or "")
    for number, pays in enumerate(parties):
        differs = overall is not None and pays in ((opposite,) if opposite else ("yes", "no"))
        assert (f"shop {number}: {pays}" in text) == differs


@pytest.mark.parametrize(
    ("bands", "first"),
    [("yycc", 20), ("ycyn", 30), ("nccc", 10), ("yyyy", None), ("yy-c", 30), ("yc", None), ("", None)],
)
def test_the_activity_from_which_joining_changes_nothing_is_named(bands: str, first: int | None) -> None:
    """The first band has no own ratings and is left out; one band alone says nothing about activity."""
    text = summarise(tables("ndcg@20", "yes", "yes", bands=bands))
    check_sentences(text)
    if first is None:
        assert "or more ratings" not in text
    else:
        assert f"with {first} or more ratings" in text


@pytest.mark.parametrize(
    ("known", "new", "advice"),
    [
        ("yes", "yes", "serve what the gate has chosen"),
        ("no", "yes", "Join for the newcomers"),
        ("yes", "cannot tell", "newcomers gain nothing yet"),
        ("no", "cannot tell", "joining does not pay"),
        ("cannot tell", None, "joining shows no clear gain"),
    ],
)
def test_the_advice_follows_from_who_gains(known: str, new: str | None, advice: str) -> None:
    assert advice in summarise(lift((known, new), None))
    assert advice in summarise(lift(("cannot tell", None), (known, new)))


def test_the_verdict_is_yes_if_anybody_gains_and_no_if_somebody_only_loses() -> None:
    for ratings in product(RESULTS, RESULTS):
        for lists in (None, *product(RESULTS, RESULTS)):
            verdicts = {*ratings, *(lists or ())}
            expected = "yes" if "yes" in verdicts else "no" if "no" in verdicts else "cannot tell"
            assert verdict(lift(ratings, lists)) == expected


@pytest.mark.parametrize(
    ("ratings", "lists", "words", "figures"),
    [
        (
            ("yes", "yes"),
            ("no", "no"),
            "Joining pays.",
            "RMSE of predicted ratings for customers that the parties",
        ),
        (
            ("no", "yes"),
            None,
            "for customers new to",
            "federated 0.9000, item means 1.1000; gain +4.2 %, +2.6 to +5.6.",
        ),
        (
            (None, None),
            ("yes", "no"),
            "for customers that the parties know.",
            "NDCG@20 of lists for customers that",
        ),
        (
            ("cannot tell", "no"),
            None,
            "Joining does not pay.",
            "federated 0.9000, item means 1.1000; gain -3.1 %",
        ),
        (("no", None), None, "Joining does not pay.", "federated 0.9000, alone 1.0500, own means 1.1000"),
        (("cannot tell", None), ("cannot tell", None), "The data cannot tell", "own means"),
        ((None, None), None, "The data cannot tell", "no test cases"),
    ],
)
def test_the_headline_says_who_gains_and_names_the_figures_that_decide(
    ratings: tuple[str | None, str | None],
    lists: tuple[str | None, str | None] | None,
    words: str,
    figures: str,
) -> None:
    found = lift(ratings, lists)
    assert words in headline(found)
    assert figures in deciding_figures(found)
    check_sentences(headline(found))


def test_a_lift_without_newcomers_says_how_to_judge_them() -> None:
    found = {key: value for key, value in lift(("yes", None), None).items() if key != "newcomers"}
    assert headline(found) == "Joining pays for customers that the parties know."
    assert "--lift" in check_sentences(summarise(found))[-1]
