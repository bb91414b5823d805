"""The words about a lift: a verdict for each party, whole sentences for every result, and the right advice."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import pytest

from verfedgnn.evaluation.chance import decide_verdicts
from verfedgnn.evaluation.lift_points import list_points, summarise
from verfedgnn.evaluation.verdict import (
    deciding_figures,
    headline,
    narrow_lift,
    party_verdicts,
    verdict,
    warn_of_one_split,
)
from verfedgnn.evaluation.verdict_words import ORDER, combine_words
from verfedgnn.reports.lift_view import PAYS_TONES, readable_tables

RESULTS = ("yes", "no", "cannot tell", None)
"""Verdicts, and None where there are no cases."""
WORDS = ("yes", "likely better", "no difference", "cannot tell", "likely worse", "no")
PERCENT = {"yes": 4.2, "no": -3.1, "cannot tell": 0.4, "likely better": 2.0, "likely worse": -2.0}


def gain_of(pays: str) -> dict[str, float]:
    if pays == "no difference":
        return {"percent": 0.1, "low_percent": -0.2, "high_percent": 0.4, "p": 0.5}
    percent = PERCENT[pays]
    return {"value": 0.01, "percent": percent, "low_percent": percent - 1.6, "high_percent": percent + 1.4}


def row(pays: str | None, **values: Any) -> dict[str, Any]:
    if pays is None:
        return {"cases": 0, "users": 0, "reference": None, "gain": None, "pays": "cannot tell", **values}
    return {
        "cases": 12_345,
        "simple": 1.1,
        "alone": 1.05,
        "federated": 0.9,
        "reference": "alone",
        "users": 1_234,
        "gain": gain_of(pays),
        "pays": pays,
        **values,
    }


def tables(
    metric: str, known: str | None, new: str | None, parties: tuple[str | None, ...] = (), bands: str = ""
) -> dict[str, Any]:
    named = [row(pays, name=f"shop{number}") for number, pays in enumerate(parties)]
    letters = {"y": "yes", "n": "no", "c": "cannot tell", "-": None}
    activity = [
        row(letters[band], **{"from": 10 * place, "to": 10 * place + 9}) for place, band in enumerate(bands)
    ]
    return {
        "metric": metric,
        "verdicts": 12,
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
    assert not re.search(r"None|nan|  | ,|\.\.|\(\)|\{|\}", text), text
    sentences = re.split(r"(?<=\.) (?=[A-Z])", text)
    for sentence in sentences:
        assert re.match(r"[A-Z].*[a-z0-9)`]\.$", sentence), sentence
        assert sentence.count("(") == sentence.count(")"), sentence
    return sentences


@pytest.mark.parametrize("lists", [None, *product(RESULTS, RESULTS)])
def test_every_result_gives_whole_sentences(lists: tuple[str | None, str | None] | None) -> None:
    for ratings in product(RESULTS, RESULTS):
        sentences = check_sentences(summarise(lift(ratings, lists)))
        assert len(sentences) >= (3 if lists is None else 5)


@pytest.mark.parametrize("parties", [*product(WORDS, repeat=2), (None, "yes")])
@pytest.mark.parametrize("overall", RESULTS)
def test_parties_that_differ_are_named(overall: str | None, parties: tuple[str | None, ...]) -> None:
    found = tables("rmse", overall, overall, parties)
    check_sentences(summarise(found))
    check_sentences(headline(found))
    if overall is None:
        return
    text = list_points(found)[0]
    for number, pays in enumerate(parties):
        assert (f"shop{number}" in text) == ((pays or "cannot tell") != overall)
        if pays in ("yes", "no") and pays != overall:
            assert f"shop{number} (" in text
        elif pays is not None and pays != overall:
            assert f"{pays} at " in text


def test_a_party_has_one_line_with_its_customers_gains_and_losses() -> None:
    found = tables("rmse", "yes", "yes", ("no", "yes", "cannot tell", None))
    found["newcomers"]["parties"] = [
        row("yes", name="shop0", users=74),
        row("yes", name="shop1"),
        row(None, name="shop2"),
        row(None, name="shop3"),
    ]
    lines = {party.name: (party.pays, party.text) for party in party_verdicts(found)}
    assert lines == {
        "shop0": (
            "mixed",
            "Yes: predicted ratings for 74 newcomers, +4.2 % (+2.6 to +5.6). "
            "No: predicted ratings for 1,234 known customers, -3.1 % (-4.7 to -1.7)",
        ),
        "shop1": (
            "yes",
            "Predicted ratings for 1,234 known customers, +4.2 % (+2.6 to +5.6); "
            "predicted ratings for 1,234 newcomers, +4.2 % (+2.6 to +5.6)",
        ),
        "shop2": ("cannot tell", "Predicted ratings for 1,234 known customers, +0.4 % (-1.2 to +1.8)"),
        "shop3": ("cannot tell", "No test cases"),
    }
    assert headline(found) == (
        "Joining pays for known customers (predicted ratings +4.2 %) and newcomers (predicted ratings +4.2 %). "
        "By party: yes at shop1; mixed at shop0; cannot tell at shop2 and shop3."
    )
    assert "party" not in headline(narrow_lift(found, "shop1"))
    assert verdict(found) == "mixed"
    assert verdict(narrow_lift(found, "nobody")) == "cannot tell"


@pytest.mark.parametrize(
    ("known", "new", "text"),
    [
        (("yes", "yes"), ("yes", "yes"), "yes at both parties"),
        (("no", "no"), (None, None), "no at both parties"),
        (("no", "no"), ("yes", "yes"), "mixed at both parties"),
        (("cannot tell", "no"), ("yes", None), "yes at shop0; no at shop1"),
        (("cannot tell", "no"), (None, None), "cannot tell at shop0; no at shop1"),
        (("likely better", "no difference"), (None, None), "likely better at shop0; no difference at shop1"),
    ],
)
def test_the_headline_answers_for_each_party(
    known: tuple[str, str], new: tuple[str | None, str | None], text: str
) -> None:
    found = tables("ndcg@20", "yes", "no", known)
    found["newcomers"]["parties"] = [row(pays, name=f"shop{number}") for number, pays in enumerate(new)]
    assert headline(found) == (
        f"Joining pays for known customers (lists +4.2 %). It does not pay for newcomers (lists -3.1 %). By party: {text}."
    )


@pytest.mark.parametrize(
    ("known", "new", "text"),
    [
        (
            "cannot tell",
            "yes",
            "Joining pays for newcomers (lists +4.2 %). For known customers the data cannot",
        ),
        (
            "no difference",
            "yes",
            "Joining pays for newcomers (lists +4.2 %). It makes no difference for known",
        ),
        (
            "likely better",
            "no",
            "Joining does not pay for newcomers (lists -3.1 %). It is likely better for known",
        ),
        ("no", "yes", "Joining does not pay for known customers (lists -3.1 %). It pays for newcomers"),
        (
            "no difference",
            "cannot tell",
            "Joining makes no difference for known customers. For newcomers the",
        ),
        ("likely worse", None, "Joining is likely worse for known customers (lists -2.0 %)."),
    ],
)
def test_the_headline_begins_with_most_users_or_with_the_only_clear_answer(
    known: str, new: str | None, text: str
) -> None:
    assert headline(tables("ndcg@20", known, new)).startswith(text)


def test_parties_too_small_to_judge_are_judged_together() -> None:
    found = tables("rmse", "yes", "cannot tell", ("cannot tell", "likely better"))
    assert verdict(found) == "yes"
    assert headline(found).endswith("By party: likely better at shop1; cannot tell at shop0.")
    assert "For all parties together the gain is clear" in summarise(found)


def judged_row(low: float, high: float, p: float, users: int = 100) -> dict[str, Any]:
    gain = {"percent": (low + high) / 2, "low_percent": low, "high_percent": high, "p": p}
    return {"users": users, "gain": gain, "pays": "cannot tell"}


@pytest.mark.parametrize(
    ("low", "high", "p", "word"),
    [
        (0.1, 0.2, 0.0, "yes"),  # clear, and called small in the headline
        (0.1, 0.4, 0.04, "no difference"),
        (-0.5, 0.5, 0.9, "no difference"),
        (-0.54, 0.54, 0.9, "no difference"),  # as shown, rounded
        (-0.5, 0.56, 0.9, "cannot tell"),
        (0.1, 2.0, 0.04, "likely better"),
        (-2.0, -0.1, 0.04, "likely worse"),
        (0.1, 2.0, 1.0, "cannot tell"),  # seeds disagree about the sign
        (-9.0, -1.0, 0.0, "no"),
        (0.0, 0.0, 1.0, "no difference"),
    ],
)
def test_the_words_by_hand(low: float, high: float, p: float, word: str) -> None:
    """Two verdicts: the smaller p-value must be at most 0.025 to be clear."""
    found = {"parties": [judged_row(low, high, p)], "overall": judged_row(-9.0, 9.0, 1.0), "metric": "rmse"}
    decide_verdicts(found)
    assert found["parties"][0]["pays"] == word
    few = {"parties": [judged_row(low, high, p, users=5)], "overall": judged_row(-9.0, 9.0, 1.0)}
    decide_verdicts(few)
    assert few["parties"][0]["pays"] == "cannot tell"


def test_a_clear_word_outweighs_a_likely_one() -> None:
    for word in WORDS:
        assert combine_words([word, word]) == word
        assert combine_words([word, "yes"]) == ("mixed" if word == "no" else "yes")
        if word not in ("yes", "no"):
            assert combine_words([word, "cannot tell"]) == (
                word if word.startswith("likely") else "cannot tell"
            )
    assert combine_words(["likely better", "likely worse", "no difference"]) == "cannot tell"
    assert combine_words(["likely better", "no difference"]) == "likely better"
    assert combine_words([]) == "cannot tell"
    assert set(ORDER) == set(PAYS_TONES) == {*WORDS, "mixed"}


def with_customers(parties: int, words: str) -> dict[str, Any]:
    """Return a lift whose first party has 10, 20, ... customers whom 0, 1, ... other parties know."""
    letters = {"y": "yes", "n": "no", "c": "cannot tell", "l": "likely better", "d": "no difference"}
    found = tables("rmse", "yes", "yes", ("yes",) * parties)
    counts = {"by_other_parties": [10 * (place + 1) for place in range(parties)], "elsewhere_only": 1_500}
    found["parties"][0] |= {
        "customers": counts,
        "by_other_parties": [row(letters[word], other_parties=place) for place, word in enumerate(words)],
    }
    return found


def test_each_party_reads_for_whom_joining_pays_there() -> None:
    first = party_verdicts(with_customers(2, "dl"))[0]
    assert first.for_whom == (
        "customers at both parties (20): likely better; here only (10): no difference; "
        "newcomers known elsewhere (1,500 today): yes"
    )
    first, second, *_ = party_verdicts(with_customers(4, "ycyy"))
    assert first.for_whom.startswith("customers at 3 or 4 parties (70): yes; at 2 parties (20): cannot tell;")
    assert "here only (10): yes" in first.for_whom
    assert second.for_whom == ""
    assert "at 2 to 4 parties (90): yes" in party_verdicts(with_customers(4, "yyyy"))[0].for_whom
    everybody = with_customers(3, "")  # a single group is not judged apart
    assert "at 2 or 3 parties (50): yes; here only (10): yes" in party_verdicts(everybody)[0].for_whom
    no_newcomers = {name: part for name, part in everybody.items() if name != "newcomers"}
    assert party_verdicts(no_newcomers)[0].for_whom == ""


def test_a_verdict_of_one_split_is_provisional() -> None:
    found = tables("rmse", "yes", "yes", ("yes", "yes"))
    assert warn_of_one_split(found) == (
        "Provisional: this is one split of the ratings; run `vf.lift(run, seeds=3)` to be sure."
    )
    assert "seeds=3" not in summarise(found) + headline(found)
    assert warn_of_one_split(found | {"seeds": [0, 1, 2]}) is None


@pytest.mark.parametrize("words", [("yes", "likely better"), ("no", "no difference"), ("cannot tell", "yes")])
def test_a_party_is_given_the_same_advice_alone_and_among_others(words: tuple[str, str]) -> None:
    found = tables("rmse", "yes", "yes", words)
    together = list_points(found)[-1]
    for number, _ in enumerate(words):
        alone = list_points(narrow_lift(found, f"shop{number}"))[-1].split(". ")[0].removesuffix(".")
        assert f"shop{number}: {alone[:1].lower()}{alone[1:]}" in together


def test_customers_who_lose_are_not_hidden_behind_the_others() -> None:
    found = tables("rmse", "yes", "yes", ("yes", "yes"))
    found["by_other_parties"] = [row("no", other_parties=0), row("yes", other_parties=1)]
    found["by_own_ratings"] = [row("no", **{"from": 1, "to": 2}), row("no", **{"from": 51, "to": None})]
    text = summarise(found)
    check_sentences(text)
    assert "worse for customers whom no other party knows, -3.1 % (-4.7 to -1.7);" in text
    assert "with 1 to 2 ratings at the party, -3.1 %" in text
    assert "with 51 or more ratings at the party, -3.1 %" in text


def test_likely_words_are_explained() -> None:
    found = tables("rmse", "yes", "yes", ("yes", "yes"))
    assert "12 verdicts (Holm's correction)" in summarise(found)
    assert "Likely" not in summarise(found)
    found["parties"] = [row("likely better", name="shop0"), row("yes", name="shop1")]
    text = summarise(found)
    check_sentences(text)
    assert "Likely better or worse: the 95 % interval excludes 0" in text


def test_a_gain_is_compared_with_what_a_party_really_has() -> None:
    found = tables("ndcg@20", "yes", "yes", ("yes", "yes"))
    found["newcomers"]["overall"] |= {"simple": 1.05001}
    known, new = list_points(found)[:2]
    assert known.endswith("compared with the parties' own models.")
    assert new.endswith("compared with the parties' most popular items.")
    known, _ = list_points(narrow_lift(found, "shop0"))[:2]
    assert known.endswith("compared with its own model.")


def test_a_metric_of_lists_that_falls_is_not_hidden_behind_one_that_rises() -> None:
    found = tables("ndcg@20", "yes", "yes", ("yes", "no"))
    assert "falls" not in summarise(found)
    ways = {"simple": 0.5, "alone": 0.6, "federated": 0.59}
    found["newcomers"]["parties"] = [
        row(pays, name=f"shop{n}", **{"hitrate@20": ways, "recall@20": ways | {"federated": 0.7}})
        for n, pays in enumerate(("yes", "no"))
    ]
    text = summarise(found)
    check_sentences(text)
    falls = "NDCG@20 rises, but another metric of the same lists falls: HitRate@20 for newcomers at shop0 (0.6000 to 0.5900)."
    assert falls in text


def test_customers_without_training_ratings_are_not_called_newcomers() -> None:
    found = tables("rmse", "yes", "yes", ("yes", "yes"))
    found["by_own_ratings"] = [row("no", **{"from": 0, "to": 0})]
    assert "worse for customers without training ratings at the party, -3.1 %" in summarise(found)
    (table,) = (each for each in readable_tables(found) if each.label == "own ratings")
    assert table.rows[0][0] == "none in training"
    assert "not the newcomers above" in table.note


def test_one_party_of_three_that_gains_is_no_yes_for_all() -> None:
    for others, expected in (("yes", "yes"), ("cannot tell", "mixed"), ("no", "mixed")):
        assert verdict(tables("rmse", "yes", "yes", ("yes", others, others))) == expected
    assert verdict(tables("rmse", "no", "no", ("no", "cannot tell"))) == "no"


def test_a_small_gain_is_called_small_in_the_headline() -> None:
    found = tables("rmse", "yes", None, ("yes", "yes"))
    small = {"percent": 0.06, "low_percent": 0.01, "high_percent": 0.1}
    for part in (found, found["newcomers"]):
        part["parties"] = [row("yes", name="shop0"), row("yes", name="shop1", gain=small)]
    found["overall"] |= {"gain": small}
    assert (
        headline(found) == "Joining gains 0.5 % or less for known customers. By party: yes at both parties."
    )
    found["newcomers"]["overall"] = row("yes")
    assert headline(found).startswith(
        "Joining pays for newcomers (predicted ratings +4.2 %). It gains 0.5 % or less for"
    )


def test_a_party_sees_the_figures_that_cannot_tell() -> None:
    """They may be nearly a no, so they are never left out."""
    found = tables("rmse", "yes", "cannot tell", ("yes", "yes"))
    nearly = {"percent": -0.5, "low_percent": -1.1, "high_percent": 0.1}
    found["newcomers"]["parties"] = [row("cannot tell", name=f"shop{n}", gain=nearly) for n in (0, 1)]
    (line, _) = party_verdicts(found)
    assert "Cannot tell: predicted ratings for 1,234 newcomers, -0.5 % (-1.1 to +0.1)" in line.text


def test_a_short_training_is_named() -> None:
    found = tables("rmse", "yes", "yes", ("yes", "yes"))
    assert "short" not in summarise(found)
    found["short"] = {"epochs": 30, "preset": "best", "usual": 300}
    text = summarise(found)
    check_sentences(text)
    assert "The training was short: the run has 30 of the 300 epochs of preset best" in text


def test_a_gain_that_is_not_clear_is_no_reason_to_stay_alone() -> None:
    for word, text in (
        ("cannot tell", "No gain or loss is clear yet"),
        ("likely better", "Joining is likely better"),
    ):
        found = summarise(tables("rmse", word, word, (word, word)))
        check_sentences(found)
        assert f"{text}" in found
        assert "more customers, ratings or seeds can make it clear" in found
        assert "stay alone" not in found


def test_a_gain_with_every_seed_is_named_where_it_is_not_clear() -> None:
    found = tables("rmse", "cannot tell", "cannot tell", ("cannot tell", "cannot tell"))
    assert "every seed" not in summarise(found)
    found["seeds"] = [0, 1, 2]
    by_seed = {"percent": 38.7, "low_percent": -0.9, "high_percent": 76.4, "by_seed": [50.7, 36.9, 28.4]}
    found["newcomers"]["parties"][0]["gain"] = by_seed
    found["newcomers"]["parties"][1]["gain"] = by_seed | {"by_seed": [50.7, 36.9, -0.1]}
    text = summarise(found)
    check_sentences(text)
    assert "Cannot tell, but positive with every seed: " in text
    assert "predicted ratings for newcomers at shop0 (+28.4 to +50.7 %)." in text
    assert "wider than that of a single run" in text


def test_no_difference_is_called_so() -> None:
    found = lift(("no difference", None), None)
    found["overall"]["gain"] = {"percent": 0.0, "low_percent": 0.0, "high_percent": 0.0}
    assert (
        "Joining makes no difference to predicted ratings for 1,234 known customers: 0 %, compared"
        in summarise(found)
    )
    assert "Joining makes no difference, so stay alone" in summarise(found)
    assert headline(found) == "Joining makes no difference for known customers."


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (None, "Serve known customers what each party has alone."),
        ({"means": 1.0, "federated": 0.0}, "The gates serve known customers what each party has alone."),
        (
            {"means": 0.5, "federated means": 0.3, "federated": 0.2},
            "too: predicted ratings at shop0 (weight 0.50) and shop1 (weight 0.50).",
        ),
    ],
)
def test_the_advice_says_what_the_weights_of_the_gates_say(
    weights: dict[str, float] | None, words: str
) -> None:
    found = tables("rmse", "cannot tell", "yes", ("cannot tell", "cannot tell"))
    if weights is not None:
        for party in found["parties"]:
            party["gate"] = {"known": weights, "newcomers": weights}
    assert words in summarise(found)
    assert ("gate" in summarise(found)) == ("gates" in words)


@pytest.mark.parametrize(
    ("bands", "first"),
    [("yycc", 20), ("ycyn", 30), ("nccc", None), ("yyyy", None), ("yy-c", 30), ("yc", None), ("", None)],
)
def test_the_activity_from_which_joining_changes_nothing_is_named(bands: str, first: int | None) -> None:
    """The first band has no own ratings and is left out; one band alone says nothing about activity."""
    text = summarise(tables("ndcg@20", "yes", "yes", bands=bands))
    check_sentences(text)
    if first is None:
        assert "ratings or more at a party" not in text
    else:
        assert f"with {first} ratings or more at a party" in text


@pytest.mark.parametrize(
    ("known", "new", "advice"),
    [
        ("yes", "yes", "Join."),
        ("no", "yes", "Join for what improves, and keep what you have alone for the rest."),
        ("cannot tell", "yes", "Join for newcomers."),
        ("yes", "cannot tell", "Join for known customers."),
        ("no", "cannot tell", "Joining does not pay, so stay alone"),
        ("likely worse", None, "Joining is likely worse, so stay alone"),
        ("cannot tell", None, "No gain or loss is clear yet"),
    ],
)
def test_the_advice_follows_from_who_gains(known: str, new: str | None, advice: str) -> None:
    assert advice in summarise(lift((known, new), None))
    assert advice in summarise(lift(("cannot tell", None), (known, new)))


def test_the_verdict_without_parties_is_that_of_all_tables() -> None:
    for ratings in product(RESULTS, RESULTS):
        for lists in (None, *product(RESULTS, RESULTS)):
            verdicts = {*ratings, *(lists or ())} & {"yes", "no"}
            expected = "mixed" if len(verdicts) == 2 else verdicts.pop() if verdicts else "cannot tell"
            assert verdict(lift(ratings, lists)) == expected


@pytest.mark.parametrize(
    ("ratings", "lists", "words", "figures"),
    [
        (
            ("yes", "yes"),
            ("no", "no"),
            "Joining improves some predictions and worsens others for known customers and newcomers.",
            "Known customers: predicted ratings (RMSE) +4.2 % (+2.6 to +5.6), lists (NDCG@20) -3.1 % (",
        ),
        (
            ("cannot tell", "yes"),
            None,
            "Joining pays for newcomers (predicted ratings +4.2 %).",
            "Newcomers: predicted ratings (RMSE) +4.2 % (+2.6 to +5.6).",
        ),
        (
            (None, None),
            ("yes", "cannot tell"),
            "Joining pays for known customers (lists +4.2 %).",
            "Known customers: lists (NDCG@20) +4.2 % (+2.6 to +5.6).",
        ),
        (
            ("cannot tell", "no"),
            None,
            "Joining does not pay for newcomers",
            "Newcomers: predicted ratings (RMSE) -3.1 %",
        ),
        (
            ("no", None),
            None,
            "Joining does not pay for known",
            "Known customers: predicted ratings (RMSE) -3.1 %",
        ),
        (("cannot tell", None), ("cannot tell", None), "the data cannot tell", "lists (NDCG@20) +0.4 %"),
        ((None, None), None, "the data cannot tell", "no test cases"),
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


def test_a_lift_without_newcomers_says_so() -> None:
    found = {key: value for key, value in lift(("yes", None), None).items() if key != "newcomers"}
    assert headline(found) == (
        "Joining pays for known customers (predicted ratings +4.2 %). Newcomers are not judged yet."
    )
    assert check_sentences(summarise(found))[-1] == "Join if newcomers gain, too."
