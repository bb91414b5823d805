"""The words and sentences of a verdict: one rule, the same on every surface."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import verfedgnn as vf
from helpers import page_text
from verfedgnn.cli.main import app
from verfedgnn.cli.tables import verdict_texts
from verfedgnn.estimator.functions import Lift
from verfedgnn.evaluation.lift import decide
from verfedgnn.evaluation.verdict import (
    LIKELY_BETTER,
    LIKELY_WORSE,
    MIXED,
    NO,
    NO_DIFFERENCE,
    UNCLEAR,
    WORDS,
    YES,
    answers,
    choose_word,
    combine_words,
    describe_lift,
    headline,
    judged_tables,
    list_points,
    party_word,
    shared_word,
    verdict_table,
)
from verfedgnn.reports.document import Document
from verfedgnn.reports.lift_report import TONES, add_lift, add_verdict


def row(
    low: float, high: float, *, lists: bool, p: float = 0.0, users: int = 100, before: float = 0.4
) -> dict[str, Any]:
    """A row whose gain has these ends: in customers of 100 for lists, in per cent for ratings."""
    scale = 0.01 if lists else before / 100
    middle = (low + high) / 2
    gain = {"value": middle * scale, "low": low * scale, "high": high * scale, "p": p}
    unit = 100 / before
    gain |= {
        f"{end}percent": gain[name] * unit
        for end, name in (("", "value"), ("low_", "low"), ("high_", "high"))
    }
    after = before + (gain["value"] if lists else -gain["value"])
    figures = (
        {"simple": before - 0.1, "alone": before, "federated": after}
        if lists
        else {"simple": before + 0.1, "means": before, "alone": before, "federated": after}
    )
    others = {"ndcg@20": figures, "recall@20": figures} if lists else {}
    words = {"reference": "alone", "gain": gain, "pays": "cannot tell", "by_own_ratings": []}
    return {"cases": users, "users": users, **figures, **others, **words}


def lift_of(parties: dict[str, list[tuple[float, float]]], *, ratings: bool = True) -> dict[str, Any]:
    """A lift with four gains a party: lists of new and known customers, then ratings of new and known ones."""

    def table(place: int) -> dict[str, Any]:
        lists = place < 2
        rows = [{"name": name, **row(*ends[place], lists=lists)} for name, ends in parties.items()]
        overall = {k: v for k, v in rows[0].items() if k not in ("name", "by_own_ratings")}
        return {"metric": "hitrate@20" if lists else "rmse", "overall": overall, "parties": rows}

    lift = {"lists": table(1) | {"newcomers": table(0)}}
    if ratings:
        lift |= table(3) | {"newcomers": table(2)}
    decide(lift)
    return lift | describe_lift(lift)


GAIN, LOSS, SAME, WIDE = (2.0, 4.0), (-4.0, -2.0), (-0.2, 0.3), (-5.0, 6.0)


@pytest.mark.parametrize(
    ("low", "high", "clear", "word"),
    [
        (1, 3, True, YES),
        (1, 3, False, LIKELY_BETTER),
        (0.1, 0.4, True, NO_DIFFERENCE),  # clear and too small to matter
        (-0.5, 0.5, False, NO_DIFFERENCE),
        (-0.6, 0.5, False, UNCLEAR),
        (-3, -1, False, LIKELY_WORSE),
        (-3, -1, True, NO),
    ],
)
def test_the_words_by_hand(low: float, high: float, clear: bool, word: str) -> None:
    for lists in (True, False):
        assert choose_word(row(low, high, lists=lists), clear=clear) == word


def test_one_word_for_several_groups() -> None:
    assert combine_words([YES, LIKELY_WORSE]) == combine_words([NO, LIKELY_BETTER]) == MIXED
    assert combine_words([LIKELY_BETTER, LIKELY_WORSE]) == UNCLEAR
    assert combine_words([YES, UNCLEAR]) == combine_words([YES, NO_DIFFERENCE]) == YES
    assert combine_words([NO_DIFFERENCE, NO_DIFFERENCE]) == NO_DIFFERENCE
    assert combine_words([NO_DIFFERENCE, UNCLEAR]) == combine_words([]) == UNCLEAR


def test_a_party_that_would_not_use_the_federated_model_says_so() -> None:
    nothing = (0.0, 0.0)
    first, second, third, _ = answers(lift_of({"shop": [nothing, SAME, nothing, WIDE]}))[0]["sentences"]
    assert first == (
        "Of 100 new customers, 40.0 find something they like among the first 20, with or without the others: "
        "shop would not use the federated model, since its own is as good."
    )
    assert "would not use" not in second
    assert third.endswith("shop would not use the federated model, since its own is as good.")
    other_order = lift_of({"shop": [nothing] * 4})
    row = other_order["lists"]["parties"][0]
    row["ndcg@20"] = row["ndcg@20"] | {"federated": 0.3}
    texts = answers(other_order)[0]["sentences"]
    assert ["would not use" in text for text in texts] == [True, False, True, True], (
        "other lists, the same hits"
    )


def test_what_customers_see_decides_not_predicted_stars() -> None:
    """Lists lose while predicted ratings gain: five shops for which an earlier headline said yes."""
    lift = lift_of({"shop": [WIDE, LOSS, GAIN, GAIN]})
    assert party_word(lift, "shop") == NO
    assert lift["headline"].startswith("Joining does not pay for shop.")
    assert party_word(lift_of({"shop": [WIDE, WIDE, GAIN, GAIN]})) == UNCLEAR


def test_gains_of_some_and_losses_of_others_are_both_said() -> None:
    lift = lift_of({"shop": [GAIN, LOSS, SAME, SAME]})
    (answer,) = answers(lift)
    assert answer["pays"] == MIXED
    assert answer["sentences"][0] == (
        "Of 100 new customers, 43 find something they like among the first 20, where it was 40 without the others "
        "(+2.0 to +4.0 of 100)."
    )
    assert answer["sentences"][1].startswith("Worse: of 100 known customers, 37 ")


def test_small_gains_have_no_direction() -> None:
    lift = lift_of({"shop": [SAME, SAME, SAME, SAME]})
    assert party_word(lift) == NO_DIFFERENCE
    assert all(text.endswith("with or without the others.") for text in answers(lift)[0]["sentences"])


def test_means_are_named_where_they_bring_most_of_the_gain() -> None:
    lift = lift_of({"shop": [SAME, SAME, GAIN, GAIN]})
    for table in (lift["overall"], lift["parties"][0]):
        table["means"] = table["federated"] + 0.15 * (table["alone"] - table["federated"])
    described = describe_lift(lift)
    assert described["source"] == "Shared means alone bring 85% of the gain in predicted stars."
    assert "`means`" in described["advice"]
    lift["overall"]["means"] = lift["overall"]["alone"]
    assert "nothing of the gain" in describe_lift(lift)["source"]


def test_too_few_customers_are_no_verdict() -> None:
    lift = lift_of({"shop": [GAIN, GAIN, GAIN, GAIN]})
    for _, table in judged_tables(lift):
        table["parties"][0]["users"] = table["overall"]["users"] = 19
    decide(lift)
    assert answers(lift)[0]["sentences"][0] == "Only 19 new customers were tested, too few to tell."
    assert verdict_table(lift)[1][0][2] == "too few"


def test_data_without_ratings_have_lists_only() -> None:
    lift = lift_of({"shop": [GAIN, SAME, SAME, SAME]}, ratings=False)
    assert party_word(lift) == YES
    assert "stars" not in " ".join([*verdict_table(lift)[0], *list_points(lift), headline(lift)])


def test_several_parties_are_named_by_word() -> None:
    lift = lift_of({"a": [GAIN] * 4, "b": [SAME] * 4, "c": [GAIN] * 4})
    assert lift["headline"].startswith(
        "Joining pays for a and c. Joining makes no difference for b. At a, of 100 new"
    )


def test_each_party_gets_its_own_advice_and_the_colour_is_neutral_unless_all_gain() -> None:
    lift = lift_of({"a": [GAIN] * 4, "b": [SAME] * 4, "c": [WIDE] * 4})
    assert lift["advice"] == (
        "For a: join, train every night and serve the federated lists. "
        "For b: stay out, or join for the customers of others; yours see no difference. "
        "For c: train again with more data, or decide by a split test: `serve --split-test 50`."
    )
    assert list_points(lift)[0].startswith("At all parties together, of 100 new customers")
    assert shared_word(lift) == UNCLEAR
    likely = (1.0, 3.0)
    lift = lift_of({"a": [GAIN] * 4, "b": [likely, WIDE, WIDE, WIDE]})
    assert shared_word(lift) == YES
    for _, table in judged_tables(lift_few := lift_of({"a": [GAIN] * 4, "b": [WIDE] * 4})):
        table["parties"][1]["users"] = 19
    assert shared_word(lift_few) == YES  # b is not judged


def test_the_headline_quotes_the_customers_who_earned_the_word() -> None:
    lift = lift_of({"shop": [SAME, GAIN, GAIN, GAIN]})
    assert lift["headline"].startswith("Joining pays for shop. Of 100 known customers, 43 ")
    assert list_points(lift)[0].startswith("Of 100 new customers, ")
    lift = lift_of({"a": [SAME] * 4, "b": [SAME, GAIN, SAME, SAME]})
    said = "Joining pays for b. Joining makes no difference for a. At b, of 100 known customers, 43 "
    assert lift["headline"].startswith(said)


def test_only_the_words_are_used() -> None:
    lift = lift_of({"shop": [WIDE, (-3.0, 3.0), SAME, SAME]})
    assert "Cannot tell: of 100 new" in lift["headline"]
    assert verdict_table(lift)[1][0][3] == "40.0, cannot tell"


ENDS = st.tuples(st.floats(-5, 5), st.floats(0, 5)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(ENDS, min_size=4, max_size=4), min_size=1, max_size=3))
def test_all_surfaces_say_the_same(gains: list[list[tuple[float, float]]]) -> None:
    """Terminal, page, report, notebook and JSON show the same word, headline and points for any figures."""
    lift = lift_of(dict(zip("abc", gains, strict=False)))
    words = [answer["pays"] for answer in answers(lift)]
    assert [each["pays"] for each in lift["verdicts"]] == words
    terminal = verdict_texts({**METRICS, "lift": lift}, vf.Config.preset("best"))
    assert str(terminal[0]) == lift["headline"] == Lift(lift).headline
    document = Document("x")
    add_verdict(document, lift)
    add_lift(document, lift)
    page = page_text(document.html())
    notebook = " ".join(repr(Lift(lift)).split())
    for text in (lift["headline"], *list_points(lift)):
        assert " ".join(text.replace("`", "").split()) in page
        assert " ".join(text.split()) in notebook
    assert [cells[1] for cells in verdict_table(lift)[1]] == words
    assert set(words) <= set(WORDS) == set(TONES)


METRICS = {
    "parties": [{"ratings": 10}],
    "test": {"rmse": 1.0},
    "rounds": 30,
    "seconds": 1.0,
    "bytes": {"up": 1, "down": 1, "per_party_per_round": 1},
}


def test_every_combination_of_words_gives_whole_sentences() -> None:
    for ends in product((GAIN, LOSS, SAME, WIDE), repeat=2):
        lift = lift_of({"shop": [*ends, SAME, WIDE]})
        for text in (lift["headline"], lift["advice"], *list_points(lift)):
            assert text[0].isupper()
            assert text.endswith(".")
            assert "  " not in text


def test_the_command_shows_what_the_run_holds(small_parties: list[vf.PartyData], tmp_path: Path) -> None:
    run = vf.train(small_parties, vf.Config.preset("best", epochs=3), out=tmp_path / "run")
    shown = CliRunner().invoke(app, ["lift", str(tmp_path / "run"), "--json"])
    assert f'"headline": "{run.metrics["lift"]["headline"]}"' in shown.output
    without = vf.train(
        small_parties, vf.Config.preset("best", epochs=3, gate=False, lists=False), out=tmp_path / "bare"
    )
    assert "lift" not in without.metrics
    refused = CliRunner().invoke(app, ["lift", str(tmp_path / "bare")])
    assert refused.exit_code
    assert replace(without).judged.metrics is without.metrics
