"""Documents as HTML, the report of a run, and the audit of a small run."""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import verfedgnn as vf
from helpers import page_text
from verfedgnn.cli.output import Output
from verfedgnn.cli.runs_commands import report
from verfedgnn.evaluation.chance import format_gain
from verfedgnn.evaluation.verdict import answers, headline, judged_tables, list_points, shared_word
from verfedgnn.privacy.visibility import who_sees_what
from verfedgnn.reports.document import (
    Banner,
    Document,
    Fold,
    Heading,
    Paragraph,
    Picture,
    Points,
    Table,
)
from verfedgnn.reports.lift_report import TONES, format_weights, gate_rows, lift_html
from verfedgnn.reports.phrases import warn_of_lists
from verfedgnn.reports.run_report import AUDIT, accuracy_table, run_document, run_html
from verfedgnn.reports.svg_charts import (
    BAD_COLOUR,
    GOOD_COLOUR,
    UNCLEAR_COLOUR,
    Interval,
    draw_intervals,
    draw_lines,
)
from verfedgnn_research.attacks import audit as auditing
from verfedgnn_research.attacks.audit import THIS, Audit, safer
from verfedgnn_research.attacks.audit_report import audit_document, strongest
from verfedgnn_research.cli.audit_command import audit

HOSTILE = "<script>alert(1)</script> & `x` **y** a|b"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audited") / "run"
    parties = vf.split_items(vf.data.synthetic_ratings(users=100, items=60, ratings=2500, seed=2), parties=3)
    vf.train(
        parties,
        vf.Config.preset("best").with_values({"epochs": 12, "gate": False, "dim": 8}),
        out=folder,
    )
    return folder


def test_a_document_shows_text_and_runs_nothing(tmp_path: Path) -> None:
    document = Document(HOSTILE)
    blocks = [
        Banner("good", HOSTILE, HOSTILE),
        Heading(HOSTILE),
        Paragraph(HOSTILE),
        Points([HOSTILE]),
        Table([HOSTILE], [[HOSTILE]]),
        None,
    ]
    document.add(
        *blocks,
        Picture(HOSTILE, draw_intervals(HOSTILE, [Interval(HOSTILE, 1, 0, 2, HOSTILE)], HOSTILE)),
    )
    page = document.write(tmp_path / "new" / "page.html").read_text()
    assert "<script" not in page
    assert page.count("<strong>y</strong>") == 8  # the title stays plain
    assert "<code>x</code>" in page
    assert "</svg>" in page


def test_the_page_needs_nothing_from_elsewhere(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No script, no address but those of SVG's own names; every attacker and every variant is in it."""
    audit(run, 5, 5, True, False, 1, Output(quiet=True, as_json=False))
    page = (run / "audit" / "audit.html").read_text()
    assert not re.findall(r'(?:src|href)="(?!data:)', page)
    assert "<script" not in page
    for words in (
        "a party with an insider",
        "a party with fake accounts",
        "a reader of the public tables",
        "all other parties together",
        "the coordinator",
        "an outsider with the final model",
        *safer(vf.Run.load(run).config),
    ):
        assert words in page
    assert "written:" in capsys.readouterr().out
    headline = json.loads((run / AUDIT).read_text())
    report(run, run.parent / "after")
    text = page_text((run.parent / "after" / "report.html").read_text())
    assert f"{headline['headline']} {headline['learnt']}" in text
    assert headline["covered"] == "Covered: all ratings, trainings of ratings, 5 rounds and 5 victims."


def test_an_audit_goes_on_where_it_was(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Audit(run, rounds=7, victims=20, compare=False)
    first, *rest = work.steps
    work.take(first)
    again = Audit(run, rounds=7, victims=20, compare=False)
    assert again.known(first)
    assert not any(again.known(step) for step in rest)
    with monkeypatch.context() as patch:
        patch.setattr(auditing, "membership", None)  # would fail if it were called again
        for step in rest:
            again.take(step)
    assert audit_document(again).html()
    other = Audit(run, rounds=8, victims=20, compare=False)
    assert not other.known(first)
    saved = json.loads((run / "audit" / "findings.json").read_text())
    assert set(saved["found"]) == {THIS}


def test_a_large_run_is_audited_by_a_stated_sample(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditing, "USERS", 50)
    monkeypatch.setattr(auditing, "ITEMS", 10)  # leaves users without ratings, who are not in the sample
    work = Audit(run, rounds=7, victims=20, compare=False)
    assert [party.ratings.n_items for party in work.parties] == [10, 10, 10]
    assert work.parties[0].ratings.n_users == 50
    assert work.is_sampled
    for step in work.steps:
        work.take(step)
    page = audit_document(work).html()
    assert f"a sample: 50 users, at most 10 items of each party, {work.settings['ratings']:,} of" in page
    assert "20 victims and 7 rounds" in page
    assert "--thorough" in page
    everything = Audit(run, rounds=7, victims=20, compare=False, thorough=True)
    assert not everything.is_sampled
    assert not any(everything.known(step) for step in everything.steps)
    for mine, whole in zip(everything.parties, everything.run.parties, strict=True):
        assert len(mine.ratings) == len(whole.ratings)


def test_an_audit_of_a_single_round(run: Path) -> None:
    """Nobody has sent a neighbourhood that shows anything yet."""
    work = Audit(run, rounds=1, victims=5, compare=False)
    for step in work.steps:
        work.take(step)
    assert audit_document(work).html()


def test_the_strongest_attack_is_that_of_either_training() -> None:
    found = {
        "items": {
            "party, fakes": {"all": 0.9, "guess": 0.8, "held": 0.51},
            "colluders, fakes": {"all": 0.9, "guess": 0.8, "held": 0.5},
            "colluders, insider": {"all": 0.9, "guess": 0.8, "held": 0.8},
            "one rating": {"all": 0.9, "guess": 0.5},
        },
        "lists": {"party, fakes": {"all": 0.8, "guess": 0.7, "held": 0.6}},
        "gradients": {"rounds": {"1": {"any": 0.5, "guess": 0.5}, "10": {"any": 0.9, "guess": 0.8}}},
        "overlap": {"guess": None, "attacks": {}},
        "model": {"membership": None},
    }
    reached = strongest(found)
    assert [(r.attacker, r.attack, r.found, r.learnt) for r in reached] == [
        ("fakes", "party, fakes, lists", 0.6, True),
        ("colluders", "colluders, insider, items", 0.8, True),
        ("rating", "one rating, items", 0.9, True),
        ("coordinator", "10 rounds of gradients", 0.9, True),
    ]


@pytest.mark.parametrize("preset", ["paper", "best", "private"])
def test_safer_variants_are_other_configurations_that_show_less(preset: str) -> None:
    config = vf.Config.preset(preset, seed=5)
    variants = safer(config)
    assert config not in variants.values()
    assert all(variant.seed == 5 and variant.split == config.split for variant in variants.values())
    assert ("preset private" in variants) == (preset in ("paper", "best"))
    if preset == "paper":
        assert variants["masks"].masking
        assert (
            "each party's"
            in {row[0]: row[1] for row in who_sees_what(config)}["gradient of public parameters"]
        )
    for variant in variants.values():
        rows = {row[0]: row[1] for row in who_sees_what(variant)}
        assert "each party's" not in rows["gradient of public parameters"]


def test_a_run_of_one_party_cannot_be_audited(tmp_path: Path) -> None:
    parties = vf.split_items(vf.data.synthetic_ratings(users=40, items=20, ratings=400, seed=2), parties=1)
    vf.train(parties, vf.Config.preset("paper", epochs=1, exchange="off"), out=tmp_path / "run")
    with pytest.raises(vf.ConfigError, match="needs the parties of a whole federation"):
        audit(tmp_path / "run", 5, 5, True, False, 1, Output(quiet=True, as_json=False))


def test_a_report_holds_the_runs_figures(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report(run, tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text()
    text = page_text(page)
    loaded = vf.Run.load(run)
    assert f"{loaded.metrics['test']['rmse']:.4f}" in text
    for party in loaded.metrics["parties"]:
        assert f"{party['test']['rmse']:.4f}" in text
    assert " to the coordinator and " in text
    assert "Who sees what" in text
    assert re.search("Beside preset best: .*model.dim=8.*training.epochs=12", text)
    users = [f" {user} " for user in loaded.parties[0].ratings.user_ids]
    assert not any(user in text for user in users)  # a report can be sent on
    assert not re.findall(r'(?:src|href)="(?!data:)', page)
    assert "report.html" in capsys.readouterr().out


@pytest.fixture(scope="module")
def lifted() -> vf.Run:
    """A run with its verdict."""
    parties = vf.split_items(vf.data.synthetic_ratings(users=150, items=60, ratings=4000, seed=2), parties=3)
    return vf.train(parties, vf.Config.preset("best").with_values({"epochs": 10, "dim": 8, "final": False}))


def test_a_report_begins_with_the_verdict_and_folds_every_figure(lifted: vf.Run, tmp_path: Path) -> None:
    document = run_document(lifted, "x")
    lift = lifted.metrics["lift"]
    first = document.blocks[0]
    assert first == Banner(TONES[shared_word(lift)], headline(lift), "")
    page = document.write(tmp_path / "report.html").read_text()
    text = page_text(page)
    folds = {block.title: block for block in document.blocks if isinstance(block, Fold)}
    tables = [b for b in folds["All figures of the verdict, with intervals"].blocks if isinstance(b, Table)]
    cells = {cell for table in tables for row in table.rows for cell in row}
    for _, table in judged_tables(lift):
        for row in [*table["parties"], table["overall"]]:
            if row["federated"] is not None:
                assert f"{row['federated']:.4f}" in cells
    for answer in answers(lift):
        assert f">{answer['name']}</th>" in page
        assert f">{answer['pays']}</td>" in page
    for point in list_points(lift):
        assert point.replace("`", "") in text
    for words in ("Cost:", "Others learn:", "Served: the judged models"):
        assert words in text
    assert "No release has a guarantee of differential privacy" in text
    assert page.count("<svg") <= 5
    assert len(text.split()) <= 1_200
    assert page.count("<details") == len(folds)
    assert "<details open" not in page
    assert not re.findall(r'(?:src|href)="(?!data:)', page)


def test_the_report_of_likes_names_no_ratings_and_the_word_comes_first(tmp_path: Path) -> None:
    table = vf.data.synthetic_ratings(users=150, items=60, ratings=4000, seed=2)
    likes = replace(table, rating=np.full(len(table), 5, np.float32))
    run = vf.train(
        vf.split_items(likes, parties=3),
        vf.Config.preset("best").with_values({"epochs": 5, "dim": 8, "final": False}),
    )
    document = run_document(run, "run")
    assert document.title == "Run of party-0, party-1 and party-2"
    verdicts = next(block for block in document.blocks if isinstance(block, Table))
    assert verdicts.header[:2] == ["", "joining pays"]
    text = page_text(document.html()).split("Who sees what")[0]
    assert f"{len(table):,} likes" in text
    for word in ("rmse", "★", "stars", "lists=False", " ratings there"):
        assert word not in text
    assert "ratings" not in accuracy_table(run.metrics).header


def test_groups_show_each_gain_and_mark_the_clear_ones(lifted: vf.Run) -> None:
    fold = next(block for block in run_document(lifted, "x").blocks if isinstance(block, Fold))
    shown = [
        block for block in fold.blocks if isinstance(block, Table) and block.header[0].endswith("items there")
    ]
    tables = [
        table
        for _, table in judged_tables(lifted.metrics["lift"])
        if any(row["by_own_ratings"] for row in table["parties"])
    ]
    assert len(shown) == len(tables) > 0
    for block, table in zip(shown, tables, strict=True):
        for cells, row in zip(block.rows, table["parties"], strict=True):
            clear = [
                group["pays"] in ("yes", "no") for group in row["by_own_ratings"] if group["gain"] is not None
            ]
            assert sum(cell.startswith("**") for cell in cells) == sum(clear)
            assert sum(cell != "-" for cell in cells[1:]) == len(clear)


def test_a_report_tells_what_the_audit_found_and_covered(lifted: vf.Run, tmp_path: Path) -> None:
    def report_text() -> str:
        return page_text(run_document(lifted, "x", tmp_path).html())

    assert "Douban" in report_text()  # of the preset's record
    (tmp_path / AUDIT).parent.mkdir()
    (tmp_path / AUDIT).write_text("{")
    assert "verfedgnn audit attacks this run" in report_text()
    found = {
        "headline": "2 of 7 attackers learnt more.",
        "learnt": "A party learns x.",
        "covered": "Covered: a tenth.",
    }
    (tmp_path / AUDIT).write_text(json.dumps(found))
    text = report_text()
    assert "Audit: 2 of 7 attackers learnt more. A party learns x. Covered: a tenth. " in text
    assert "Douban" not in text


def test_a_report_without_a_gate_says_that_nothing_was_judged(lifted: vf.Run) -> None:
    metrics = {name: value for name, value in lifted.metrics.items() if name != "lift"}
    first = run_document(replace(lifted, metrics=metrics), "x").blocks[0]
    assert isinstance(first, Banner)
    assert (first.tone, first.headline) == ("unclear", "Whether joining pays is not judged.")


def test_notebooks_show_verdict_table_and_curve(lifted: vf.Run) -> None:
    lift = lifted.metrics["lift"]
    html = run_html(lifted).replace("&nbsp;", " ")
    cell = lift_html(lift).replace("&nbsp;", " ")
    for part in (html, cell):
        assert headline(lift) in part
        assert "<script" not in part
    assert f"{lifted.metrics['parties'][0]['test']['rmse']:.4f}" in html
    assert "Validation by round" in html
    assert f"{lift['overall']['federated']:.4f}" in cell
    for what in ("Lists", "Predicted stars"):
        for whose in ("new", "known"):
            assert f"{what} of {whose} customers" in cell


def test_the_charts_of_a_report_need_no_matplotlib(lifted: vf.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    pictures = re.findall("<svg.*?</svg>", run_document(lifted, "x").html(), re.S)
    titles = " ".join(pictures)
    for words in (
        "Validation by round",
        "in lists of known customers",
        "in predicted stars of known customers",
    ):
        assert words in titles
    for svg in pictures:
        root = ElementTree.fromstring(svg)
        title, description = (
            root.findtext(f"{{http://www.w3.org/2000/svg}}{tag}") for tag in ("title", "desc")
        )
        assert title
        assert re.search(r"\d", description or "")
        assert root.get("role") == "img"


def test_on_a_phone_nothing_is_cut_off_and_the_verdict_stays_in_sight(lifted: vf.Run, tmp_path: Path) -> None:
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    names = ("chromium", "chromium-browser", "google-chrome")
    chromium = next((path for name in names if (path := shutil.which(name))), None)
    if chromium is None:
        pytest.skip("there is no Chromium here")
    report_page = run_document(lifted, "x").write(tmp_path / "report.html")
    with driver.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"], timeout=180_000)
        page = browser.new_page(viewport={"width": 390, "height": 800})
        page.set_default_timeout(180_000)
        page.goto(report_page.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        table = page.get_by_role("region", name="The verdict of each party")
        assert table.evaluate("(box) => box.scrollWidth > box.clientWidth")
        for cell in (
            table.locator("tbody tr").first.locator("td").all()[:3]
        ):  # the word, new and known customers
            assert cell.evaluate("(cell) => cell.getBoundingClientRect().right") <= 390
        page.keyboard.press("Tab")
        assert table.evaluate("(box) => box === document.activeElement")
        page.keyboard.press("ArrowRight")
        page.wait_for_function("document.activeElement.scrollLeft > 0")
        page.locator("details").evaluate_all("(all) => all.forEach((fold) => (fold.open = true))")
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        labels = page.locator("svg text").evaluate_all(
            "(all) => all.map((text) => text.getBoundingClientRect().height)"
        )
        assert min(labels) > 9
        browser.close()


def test_the_gate_in_words(lifted: vf.Run) -> None:
    assert format_weights({"means": 0.1, "federated": 0.6, "EASE": 0.0, "alone": 0.3}) == (
        "0.6 federated, 0.3 alone, 0.1 means"
    )
    assert format_weights({"means": -0.25, "federated": 1.25}) == "1.2 federated, -0.25 means"
    assert format_weights({"means": 0.0}) == "-"
    assert format_weights({"popularity": 0.004, "EASE": 0.0, "federated": 0.0}) == "0.004 popularity"
    few = {"EASE": 0.8, "federated": 0.046}  # a small weight of large scores moves lists
    assert format_weights(few) == "0.8 EASE, 0.046 federated"
    rows = gate_rows(lifted.metrics)
    assert [row[:2] for row in rows] == [
        [f"party-{n}", what] for n in (0, 1, 2) for what in ("ratings", "lists")
    ]


def test_a_gain_of_few_users_is_not_shown() -> None:
    row = {"users": 500, "gain": {"percent": 12.17, "low_percent": 11.2, "high_percent": 13.26}}
    assert format_gain(row) == "+12.2 % (+11.2 to +13.3)"
    assert format_gain(row | {"gain": {"percent": -0.04, "low_percent": -0.14, "high_percent": 0.06}}) == (
        "0.0 % (-0.1 to +0.1)"
    )
    assert format_gain(row | {"gain": {"percent": 0.008, "low_percent": 0.002, "high_percent": 0.014}}) == (
        "+0.01 % (0.00 to +0.01)"
    )
    assert format_gain(row | {"gain": {"percent": 0.14, "low_percent": -0.012, "high_percent": 0.3}}) == (
        "+0.14 % (-0.01 to +0.30)"
    )
    nothing = {"percent": 0.0, "low_percent": 0.0, "high_percent": 0.0}
    assert format_gain(row | {"gain": nothing}) == "0 %"
    assert format_gain(row | {"users": 19}) == "-"
    assert format_gain(row | {"gain": None}) == "-"


def test_intervals_are_drawn_to_scale_and_in_the_colour_of_their_verdict() -> None:
    rows = [
        Interval("<a & b>", 10, 5, 15, "yes"),
        Interval("b", -10, -15, -5, "no"),
        Interval("c", 0, -5, 5, "cannot tell"),
        Interval("chance", 4, 1, 7, "likely better"),
    ]
    svg = draw_intervals("title", rows, "axis")
    assert svg is not None
    root = ElementTree.fromstring(svg)
    assert "<a & b>" in [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    dots = list(root.iter("{http://www.w3.org/2000/svg}circle"))
    assert [dot.get("fill") for dot in dots] == [GOOD_COLOUR, BAD_COLOUR, "none", "none"]
    assert [dot.get("stroke") for dot in dots] == [None, None, UNCLEAR_COLOUR, GOOD_COLOUR]
    assert "+4.0 % (+1.0 to +7.0), likely better" in svg
    first, second, third, _ = (float(dot.get("cx", "nan")) for dot in dots)
    assert first - third == pytest.approx(third - second, abs=0.2)
    assert not draw_intervals("title", [], "axis")


@pytest.mark.parametrize("ys", [[1.0, 1.0], [0.0, 0.0], [1e-6, 2e-6], [-3.0, 1e6]])
def test_lines_of_any_range_can_be_drawn(ys: list[float]) -> None:
    svg = draw_lines("title", {"<x>": ([0, 1], ys)}, "x", "y", {"<mark>": 0.5})
    assert svg is not None
    ElementTree.fromstring(svg)
    assert "nan" not in svg
    assert not draw_lines("title", {}, "x", "y", {})


def test_numbers_are_aligned_right_and_verdicts_have_their_tone() -> None:
    rows = [
        ["a", "1,234", "+12.2 % (+11.2 to +13.1)", "0.7380", "1.5 MB", "2 or 3", "yes"],
        ["b", "5", "-", "-", "3 B", "4", "no"],
    ]
    table = Table(["party", "users", "gain", "rmse", "size", "words", "pays"], rows, "Lift", TONES)
    assert table.numeric == [False, True, True, True, True, False, False]
    document = Document("x", [table])
    page = document.html()
    assert '<div class="table" tabindex="0" role="region" aria-label="Lift">' in page
    assert '<td class="word good">yes</td>' in page
    assert '<td class="word bad">no</td>' in page


def test_lists_that_lose_to_popularity_are_named() -> None:
    def party(name: str, found: float | None, popular: float | None) -> dict[str, Any]:
        return {"name": name, "test": {"rmse": 1.0, "ndcg@20": found}, "popularity": {"ndcg@20": popular}}

    metrics: dict[str, Any] = {"test": {"rmse": 1.0, "ndcg@20": 0.2}, "parties": [party("good", 0.2, 0.1)]}
    assert warn_of_lists(metrics) is None
    metrics["parties"] += [party("bad", 0.1, 0.2), party("empty", None, None), party("same", 0.1, 0.1)]
    text = warn_of_lists(metrics)
    assert text is not None
    assert text.startswith(
        "Lists are worse than the most popular items at bad (NDCG@20 0.1000, popularity 0.2000)."
    )
    assert 'train with preset="best" to order' in text
    text = warn_of_lists(metrics | {"lists": {}})
    assert text is not None
    assert text.endswith("Train with more data, or show these customers what is popular.")
    metrics["parties"] = [party("close", 0.199, 0.2)]
    assert warn_of_lists(metrics | {"lists": {}}) == (
        "Lists are no better than the most popular items at close (NDCG@20 0.1990, popularity 0.2000)."
    )
