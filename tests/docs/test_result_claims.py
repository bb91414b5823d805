"""Numbers that README and docs/ take from results/ equal those in results/, and those in the text of results/ its records.

`CLAIMS` lists each sentence or table row with `{}` for its numbers, and where each number comes from. A number is compared
as it is printed: 0.858 and 0.86 agree with 0.8582, and 0.857 does not.

Every number with four decimals on a page has a source, so that none can be added without one. It is part of a claim, or it is
in a results file that `FIGURES_FROM` lists for the page, or `NOT_FROM_RESULTS` says where it comes from.
"""

from __future__ import annotations

import json
import re
import shutil
import statistics
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import decision_page
import result_tables
from doc_commands import PAGES, ROOT
from verfedgnn.config import Config
from verfedgnn.evaluation.verdict import judged_tables
from verfedgnn_research.paper.paper_page import fill_page

RESULTS = ROOT / "results"
Source = Callable[[], float]


class Claim(NamedTuple):
    """A piece of a page's text, with `{}` for each number, and the sources of the numbers."""

    page: str
    text: str
    sources: list[Source]


def cell(file: str, row: str, column: str, *nth: int) -> list[Source]:
    """Return sources for the numbers of a table cell in `results/FILE`.

    The row is found by how its first cells begin, joined with ` | `. `nth` names which numbers of the cell are meant.
    """
    return [lambda n=n: read_cell(RESULTS / file, row, column)[n] for n in nth or (0,)]  # type: ignore[misc]


def read_cell(path: Path, row: str, column: str) -> list[float]:
    """Return the numbers in the only cell of a Markdown file with this row and column."""
    header: list[str] = []
    found = []
    for line in path.read_text("utf-8").splitlines():
        cells = [one.strip().replace("*", "") for one in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            header = []
        elif not header:
            header = cells
        elif " | ".join(cells).startswith(row) and column in header:
            found.append(cells[header.index(column)])
    assert len(found) == 1, f"{path.name} has {len(found)} cells for {row!r}, {column!r}"
    return [float(number.replace(",", "")) for number in re.findall(r"-?\d[\d,]*(?:\.\d+)?", found[0])]


TABLE2 = "paper/table2.md"


def table2(method: str, model: str, column: str = "ML-1M, here", *nth: int) -> list[Source]:
    """Return sources for a cell of the paper's Table 2, as measured here."""
    return cell(TABLE2, f"{method} | {model} |", column, *nth)


MODELS = ("GCN", "GAT", "GGNN")
PRIVATE = cell("privacy.md", "ML-1M", "ε = 4 (z = 11.71)")
SERVED_PRIVATE = cell("privacy.md", "ML-1M", "served")
COMMON_PRIVATE = cell("privacy.md", "ML-1M", "common model")
PAPER_CELLS = [table2("VerFedGNN", model, "ML-1M, paper")[0] for model in MODELS]
OUR_CELLS = [table2("VerFedGNN", model)[0] for model in MODELS]


def persons(column: str) -> list[Source]:
    """Return sources for the RMSE on ML-1M at both budgets of results/persons.md."""
    return cell("persons.md", "ML-1M | 4 | 0", column) + cell("persons.md", "ML-1M | 8 | 0", column)


NIGHT = [
    *cell("federation.md", "disk of a party's night, MB", "81cc7431"),
    *cell("federation.md", "disk of the coordinator's night, MB", "81cc7431"),
]
PROOF, _ = decision_page.read_proof()
BY_DATA = decision_page.by_data(PROOF)
LISTS, STARS, NEW, KNOWN = "hitrate@20", "rmse", "newcomers", "known"


def gained(data: str, metric: str, customers: str, sign: int = 1) -> Source:
    """Return a source for the mean gain of a data set: lists in customers of 100, stars in per cent."""
    return lambda: sign * statistics.mean(decision_page.gains(BY_DATA[data], metric, customers))


def brought(data: str, customers: str) -> Source:
    """Return a source for the share of the gain in stars that shared means bring, in per cent."""

    def source() -> float:
        rows = [
            table["overall"]
            for record in BY_DATA[data]
            for table in decision_page.tables(record, STARS, customers)
        ]
        before, means, after = (
            statistics.mean(row[row["reference"] if way == "before" else way] for row in rows)
            for way in ("before", "means", "federated")
        )
        return 100 * (before - means) / (before - after)

    return source


def words(word: str | None = None) -> Source:
    """Return a source for how often the parties' tables say a word, or any."""
    return lambda: sum(
        word in (None, row["pays"])
        for record in PROOF
        for _, table in judged_tables(record["lift"])
        for row in table["parties"]
    )


def protocols(gnn: str) -> list[Source]:
    """Return sources for means and deviations of VerFedGNN under the authors' protocol and under ours, which has a validation part."""
    lines = (RESULTS / "paper" / "authors" / "cells.jsonl").read_text("utf-8").splitlines()
    records = [record for record in map(json.loads, lines) if record["gnn"] == gnn]
    found = (
        [r["test"]["rmse"] for r in records if r["data"] == [data] and ("valid" in r) == ours]
        for data in ("ml-100k", "book-crossing")
        for ours in (False, True)
    )
    return [lambda v=v, of=of: of(v) for v in found for of in (statistics.mean, statistics.stdev)]  # type: ignore[misc]


def served_better(metric: str) -> list[float]:
    """Return by how many per cent the served models of results/life.md are better than the judged ones."""
    records = result_tables.read("life/everything.json")
    return [100 * abs(record["served"][metric] / record["judged"][metric] - 1) for record in records]


def shape(name: str) -> list[Source]:
    """Return sources for a row of the table of shapes, from users on."""
    record = result_tables.read(f"scale/{name}.json")
    parts = record["trainings"]
    found = [record["shape"][key] for key in ("users", "ratings", "parties")]
    found += [record["cpu_seconds"], record["peak_gb_of_all_parties"]]
    found += [parts[part]["rounds"] for part in ("ratings", "lists")]
    pairs = (("ratings", "lists"), ("final", "final lists"))
    found += [sum(parts[part]["mb_a_party"] for part in pair) for pair in pairs]
    return [lambda number=number: float(number) for number in found]  # type: ignore[misc]


CLAIMS = [
    Claim(
        "results/lift.md",
        "gain {} of 100 on Amazon, {} on Ciao and {} on sports and clothes. They gain {} on Douban and lose {} on ML-1M, within chance.",
        [
            *(gained(data, LISTS, NEW) for data in ("amazon", "ciao-any", "sport-cloth", "douban")),
            gained("ml-1m", LISTS, NEW, -1),
        ],
    ),
    Claim(
        "results/lift.md",
        "gain {} on ML-1M cut at random, {} by genre, {} on Ciao, and at most {} in other shops.",
        [
            *(gained(data, LISTS, KNOWN) for data in ("ml-1m", "genre", "ciao-any")),
            lambda: max(gained(data, LISTS, KNOWN)() for data in ("amazon", "sport-cloth", "douban")),
        ],
    ),
    Claim(
        "results/lift.md",
        "ML-100K, cut at random, gains {} and {}.",
        [gained("ml-100k", LISTS, customers) for customers in (NEW, KNOWN)],
    ),
    Claim(
        "results/lift.md",
        "**Of {} words, {} are *no* and {} *likely worse***",
        [words(), words("no"), words("likely worse")],
    ),
    Claim(
        "results/lift.md",
        "brings {} % of the gain on Amazon, {} % on Ciao, {} % on Douban, and {} to {} % on MovieLens.",
        [
            *(brought(data, NEW) for data in ("amazon", "ciao-any", "douban")),
            lambda: min(brought(data, NEW)() for data in ("genre", "ml-1m", "ml-100k")),
            lambda: max(brought(data, NEW)() for data in ("genre", "ml-1m", "ml-100k")),
        ],
    ),
    Claim(
        "results/lift.md",
        "For known customers it brings {} % on Amazon and {} to {} % on MovieLens.",
        [
            brought("amazon", KNOWN),
            lambda: min(brought(data, KNOWN)() for data in ("genre", "ml-1m", "ml-100k")),
            lambda: max(brought(data, KNOWN)() for data in ("genre", "ml-1m", "ml-100k")),
        ],
    ),
    *(
        Claim("docs/paper.md", f"| {gnn.upper()} | {' | '.join(['{} ± {}'] * 4)} |", protocols(gnn))
        for gnn in ("gcn", "gat", "ggnn")
    ),
    Claim(
        "results/life.md",
        "better by {} to {} % in stars and by {} to {} % in NDCG@20.",
        [
            lambda metric=metric, end=end: end(served_better(metric))
            for metric in ("rmse", "ndcg@20")
            for end in (min, max)
        ],
    ),
    *(
        Claim(
            "results/rounds.md",
            f"(scale/{name}.json) {' | {}' * 5} | {{}} + {{}} | {{}} | {{}} |".replace("json)  ", "json) "),
            shape(name),
        )
        for name in ("yelpzip", "five-platforms", "yelp")
    ),
    Claim("docs/deploy.md", "a night takes {} MB at a party and {} MB at the coordinator", NIGHT),
    Claim(
        "README.md",
        "a rating: RMSE {}; at home {}, no ε |",
        PRIVATE + SERVED_PRIVATE,
    ),
    Claim(
        "docs/is-it-for-me.md",
        "RMSE on ML-1M is {}, and {} as each party serves it.",
        PRIVATE + SERVED_PRIVATE,
    ),
    Claim(
        "docs/faq.md",
        "GCN reaches {} (paper {}), GAT {} ({}) and GGNN {} ({})",
        [one for pair in zip(OUR_CELLS, PAPER_CELLS, strict=True) for one in pair],
    ),
    Claim(
        "docs/faq.md",
        "tuned matrix factorisation with biases reaches {}.",
        table2("MF with biases, tuned", ""),
    ),
    *(
        Claim(
            "docs/paper.md",
            f"| VerFedGNN, {model} | {{}} ± {{}} | {{}} ± {{}} | {{}} ± {{}} | {{}} ± {{}} |",
            [
                one
                for data in ("ML-1M", "BookCrossing")
                for kind in ("paper", "here")
                for one in table2("VerFedGNN", model, f"{data}, {kind}", 0, 1)
            ],
        )
        for model in MODELS
    ),
    *(
        Claim(
            "docs/paper.md",
            f"| {words} | | {{}} ± {{}} | | {{}} ± {{}} |",
            table2(method, model, "ML-1M, here", 0, 1) + table2(method, model, "BookCrossing, here", 0, 1),
        )
        for words, method, model in (
            ("user and item means, pooled", "User and item means", ""),
            ("MF with biases, tuned, pooled", "MF with biases, tuned", ""),
            ("each party alone, GCN", "Each party alone", "GCN"),
        )
    ),
    Claim(
        "docs/privacy.md",
        "RMSE {} on ML-1M, as served at home {} |",
        PRIVATE + SERVED_PRIVATE,
    ),
    Claim("docs/privacy.md", "| test RMSE | {} | {} |", persons("single ratings")),
    Claim(
        "docs/privacy.md",
        "| ε of the median user | {} | {} |",
        cell("persons.md", "ML-1M | 4 | 25", "ε of the median user")
        + cell("persons.md", "ML-1M | 8 | 56", "ε of the median user"),
    ),
    Claim(
        "docs/privacy.md",
        '| AUC of "who is elsewhere" | {} | {} |',
        cell("persons.md", "single ratings, ε = 4", "AUC")
        + cell("persons.md", "single ratings, ε = 8", "AUC"),
    ),
    Claim(
        "docs/privacy.md", "was {}, which costs more", cell("persons.md", "ML-1M | 4 | 0", "users, K = 16")
    ),
]

FIGURES_FROM = {
    "docs/paper.md": ["paper/*.md", "lift.md"],
    "docs/paper-notes.md": ["paper/table2.md", "core.md"],
}
"""By page: files of results/ that contain its other figures with four decimals, printed alike."""
EARLIER = "a validation RMSE of the search described there, whose records are not kept"
NOT_FROM_RESULTS: dict[str, dict[str, str]] = {
    "docs/paper-notes.md": dict.fromkeys(
        ["1.7739", "1.6048", "0.9153", "0.9154", "0.9151", "0.9088", "0.9143", "0.9159"], EARLIER
    ),
}
"""By page: other numbers with four decimals, and where they come from."""


def prose(page: str) -> str:
    """Return a page on one line, without code blocks and without the parts that a command writes."""
    text = (ROOT / page).read_text("utf-8")
    text = re.sub(r"<!-- begin (\S+) -->.*?<!-- end \1 -->", "", text, flags=re.DOTALL)
    text = re.sub(r"^```.*?^```[^\n]*$", "", text, flags=re.DOTALL | re.MULTILINE)
    return " ".join(text.split())


def match_claim(claim: Claim, text: str) -> re.Match[str]:
    """Return the only place of a claim in a text."""
    pattern = re.escape(claim.text).replace(r"\{\}", r"([+-]?\d[\d,]*(?:\.\d+)?)").replace(r"\ ", " ")
    found = list(re.finditer(pattern, text))
    assert len(found) == 1, f"{claim.page} has {claim.text!r} {len(found)} times"
    return found[0]


def printed_like(number: float, printed: str) -> str:
    """Return a number with as many decimals as a printed one."""
    decimals = len(printed.partition(".")[2])
    return f"{number:.{decimals}f}"


def wrong_numbers(claim: Claim, text: str) -> list[str]:
    """Return the numbers of a claim that differ from their sources."""
    groups = match_claim(claim, text).groups()
    assert len(groups) == len(claim.sources), f"{claim.text!r}: a source for each number"
    return [
        f"{printed}, but results/ has {number}"
        for printed, source in zip(groups, claim.sources, strict=True)
        if printed_like(number := source(), printed) != printed.replace(",", "").lstrip("+")
    ]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.page}: {claim.text[:60]}")
def test_numbers_equal_those_in_results(claim: Claim) -> None:
    assert wrong_numbers(claim, prose(claim.page)) == []


@pytest.mark.parametrize("page", PAGES)
def test_every_figure_has_a_source(page: str) -> None:
    text = prose(page)
    covered = set()
    for claim in CLAIMS:
        if claim.page == page:
            match = match_claim(claim, text)
            covered |= {match.start(n + 1) for n in range(len(match.groups()))}
    figures = [m for m in re.finditer(r"(?<![\d.])\d\.\d{4}(?!\d)", text) if m.start() not in covered]
    known = "".join(
        path.read_text("utf-8") for name in FIGURES_FROM.get(page, []) for path in sorted(RESULTS.glob(name))
    )
    sourced = {*re.findall(r"(?<![\d.])\d\.\d{4}(?!\d)", known), *NOT_FROM_RESULTS.get(page, {})}
    without = [m[0] for m in figures if m[0] not in sourced]
    assert without == [], f"{page}: add a claim, a file to FIGURES_FROM or a reason to NOT_FROM_RESULTS"


def test_docs_say_how_many_rounds_a_training_has_and_how_many_numbers_a_round() -> None:
    configs = [
        part.for_data(10, 10 * ratings, 3)
        for ratings in (5, 50)
        for part in (Config.preset("best"), Config.preset("best").for_lists())
    ]
    judged = configs[2].training.epochs + configs[3].training.epochs
    final = configs[2].for_final().training.epochs + configs[3].for_final().training.epochs
    few, many = (
        sizes.dim + 3 + (3 * sizes.raters + 1) * bool(sizes.raters)
        for sizes in (configs[0].model, configs[2].model)
    )
    assert f"at most {judged} releases, and at most {final} more on" in prose("docs/model.md")
    assert f"masked, at most {judged + final} times" in prose("README.md")
    assert f"masked, in at most {judged + final} rounds" in prose("docs/privacy.md")
    text = prose("docs/is-it-for-me.md")
    assert f"at most {judged + final} rounds, {final} of them on all ratings" in text
    assert f"A round sends {few} to {many} numbers a user" in text


def test_the_paper_page_counts_the_verdicts_of_table_2() -> None:
    rows = [
        line.rsplit("|", 2)[1].strip(" *")
        for line in (RESULTS / TABLE2).read_text("utf-8").splitlines()
        if line.count("|") == 7
    ]
    found = Counter(rows)
    counts = found["confirmed"], found["contradicted"], found["not settled"]
    said = "of {} claims {} are confirmed, {} contradicted and {} not settled"
    assert said.format(sum(counts), *counts) in prose("docs/paper.md")


def test_a_wrong_number_is_noticed() -> None:
    right = Claim("x", "reaches {} here", cell("privacy.md", "ML-1M", "ε = 4 (z = 11.71)"))
    assert wrong_numbers(right, "it reaches 0.9067 here") == []
    assert wrong_numbers(right, "it reaches 0.907 here") == []
    assert wrong_numbers(right, "it reaches 0.9066 here") != []
    assert wrong_numbers(right, "it reaches 0.906 here") != []


@pytest.mark.parametrize("name", result_tables.PAGES)
def test_the_tables_of_results_are_those_of_the_records(name: str) -> None:
    assert result_tables.fill(name) == (RESULTS / name).read_text("utf-8"), "run benchmarks/result_tables.py"


def test_runs_quote_what_attackers_reached() -> None:
    assert result_tables.audit_record() == result_tables.AUDIT.read_text("utf-8")


def test_the_page_that_decides_is_that_of_the_records() -> None:
    page = decision_page.page(*decision_page.read_proof())
    assert page == (RESULTS / "README.md").read_text("utf-8"), "run benchmarks/decision_page.py"


def test_the_paper_page_has_the_tables_of_results(tmp_path: Path) -> None:
    page = tmp_path / "docs" / "paper.md"
    page.parent.mkdir()
    shutil.copy(ROOT / "docs" / "paper.md", page)
    shutil.copytree(RESULTS / "paper", tmp_path / "results" / "paper")
    fill_page(page, tmp_path / "results" / "paper")
    assert page.read_text("utf-8") == (ROOT / "docs" / "paper.md").read_text("utf-8")
