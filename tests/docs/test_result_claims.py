"""Numbers that README and docs/ take from results/ equal those in results/.

`CLAIMS` lists each sentence or table row with `{}` for its numbers, and where each number comes from. A number is compared
as it is printed: 0.858 and 0.86 agree with 0.8582, and 0.857 does not.

Every number with four decimals on a page has a source, so that none can be added without one. It is part of a claim, or it is
in a results file that `FIGURES_FROM` lists for the page, or `NOT_FROM_RESULTS` says where it comes from.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from doc_commands import PAGES, ROOT
from verfedgnn.research.paper.paper_page import fill_page

RESULTS = ROOT / "results"
Source = Callable[[], float]


class Claim(NamedTuple):
    """A piece of a page's text, with `{}` for each number, and the sources of the numbers."""

    page: str
    text: str
    sources: list[Source]


def lift(case: str, seeds: list[int], columns: list[str], party: str | None = None) -> list[Source]:
    """Return sources for ratings in `results/lift/CASE-gcn-SEED.json`, as means over seeds."""

    def mean(column: str) -> float:
        values = []
        for seed in seeds:
            record = read_lift(case, seed)
            rows = {row["name"]: row for row in record["parties"]} | {None: record["overall"]}
            values.append(rows[party][column])
        return sum(values) / len(values)

    return [lambda column=column: mean(column) for column in columns]  # type: ignore[misc]


def gains(case: str, seeds: list[int]) -> list[Source]:
    """Return sources for the gain in per cent: ratings, lists, and both for newcomers, as means over seeds."""

    def mean(*path: str) -> float:
        values = []
        for seed in seeds:
            table: dict[str, Any] | None = read_lift(case, seed)
            for key in path:
                assert table is not None
                table = table[key]
            if table is not None:  # a part that was not measured with this seed
                values.append(table["overall"]["gain"]["percent"])
        return sum(values) / len(values)

    paths = [(), ("lists",), ("newcomers",), ("lists", "newcomers")]
    return [lambda path=path: mean(*path) for path in paths]  # type: ignore[misc]


def equal_gains(case: str, seeds: list[int]) -> list[Source]:
    """Return the sources of `gains`, with the gain in ratings over a model alone that also starts from means."""
    where = {"ml-1m": "on ML-1M", "genre": "by genre", "amazon": "on Amazon"}[case]

    def read() -> float:
        text = " ".join((RESULTS / "lift.md").read_text("utf-8").split())
        (found,) = re.findall(rf"([\d.]+) instead of [\d.]+ % {where}", text)
        return float(found)

    return [read, *gains(case, seeds)[1:]]


def read_lift(case: str, seed: int) -> dict[str, Any]:
    """Return the lift of a case in `results/lift`."""
    path = RESULTS / "lift" / f"{case}-gcn-{seed}.json"
    record = json.loads(path.read_text("utf-8"))
    new = record.get("newcomers", {})
    lists = record["lists"].get("lift", {}) | {"newcomers": new.get("lists")}
    found: dict[str, Any] = record["ratings"]["lift"] | {"newcomers": new.get("lift"), "lists": lists}
    return found


def megabytes(case: str, seed: int) -> list[Source]:
    """Return sources for the bytes of one party in the training of ratings and in that of lists, in MB."""

    def read(part: str) -> float:
        found = json.loads((RESULTS / "lift" / f"{case}-gcn-{seed}.json").read_text("utf-8"))[part]
        return float((found["bytes"]["up"] + found["bytes"]["down"]) / len(found["parties"]) / 1e6)

    return [lambda part=part: read(part) for part in ("ratings", "lists")]  # type: ignore[misc]


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


def difference(one: list[Source], other: list[Source]) -> list[Source]:
    """Return a source for the difference of two."""
    return [lambda: one[0]() - other[0]()]


def percent(part: list[Source], whole: list[Source]) -> list[Source]:
    """Return a source for how much lower `part` is than `whole`, in per cent."""
    return [lambda: 100 * (1 - part[0]() / whole[0]())]


COLUMNS = ["simple", "alone", "federated"]
BOOKS = ("amazon", [0, 1, 2])
TABLE2 = "paper/table2.md"
AMAZON_BOOKS = lift(*BOOKS, COLUMNS, "books")
AMAZON_MOVIES = lift(*BOOKS, COLUMNS, "movies")


def table2(method: str, model: str, column: str = "ML-1M, here", *nth: int) -> list[Source]:
    """Return sources for a cell of the paper's Table 2, as measured here."""
    return cell(TABLE2, f"{method} | {model} |", column, *nth)


MODELS = ("GCN", "GAT", "GGNN")
PRIVATE = cell("privacy.md", "ML-1M", "ε = 4 (z = 11.71)")
SERVED_PRIVATE = cell("privacy.md", "ML-1M", "served")
COMMON_PRIVATE = cell("privacy.md", "ML-1M", "common model")
PAPER_CELLS = [table2("VerFedGNN", model, "ML-1M, paper")[0] for model in MODELS]
OUR_CELLS = [table2("VerFedGNN", model)[0] for model in MODELS]
BEST_CELLS = [cell("frontier.md", f"ml-1m | {model.lower()} |", "test RMSE")[0] for model in MODELS]
NO_EXCHANGE = cell("frontier.md", "ml-1m | ggnn exchange.mode=off |", "test RMSE")


def scale_row(row: str, column: str, *nth: int) -> list[Source]:
    """Return sources for a cell of the tables about two million users in results/scale.md."""
    return cell("scale.md", row, column, *nth)


def persons(column: str) -> list[Source]:
    """Return sources for the RMSE on ML-1M at both budgets of results/persons.md."""
    return cell("persons.md", "ML-1M | 4 | 0", column) + cell("persons.md", "ML-1M | 8 | 0", column)


PLANTED = "training | all channels"


def table_attack(row: str) -> list[Source]:
    """Return a source for an AUC against held-out ratings in the table about public tables in results/attacks.md."""
    return cell("attacks.md", f"{row} fake accounts", "against held-out")


def best(row: str, column: str = "test RMSE", *nth: int) -> list[Source]:
    """Return sources for a cell of results/best.md."""
    return cell("best.md", row, column, *nth)


CLAIMS = [
    Claim(
        "docs/scale.md",
        "20 million events took {} s more from a local Spark session and {} s more from Ray.",
        cell("scale.md", "Spark, two million rows a partition | 20 |", "frame: wall s")
        + cell("scale.md", "Ray Data | 20 |", "frame: wall s"),
    ),
    Claim(
        "README.md",
        "| ML-1M, 10 random parties | +{} %, yes | +{} %, yes | +{} %, yes | +{} %, yes |",
        equal_gains("ml-1m", [0, 1, 2]),
    ),
    Claim(
        "README.md",
        "| ML-1M by genre, 3 parties | +{} %, yes | +{} %, yes | +{} %, yes | +{} %, yes |",
        equal_gains("genre", [0, 1, 2]),
    ),
    Claim(
        "README.md",
        "| Amazon, two shops | +{} %, yes | +{} %, 2 of 3 | +{} %, yes | +{} %, yes |",
        equal_gains("amazon", [0, 1, 2]),
    ),
    Claim(
        "README.md",
        "| Ciao, four categories | +{} %, yes | +{} %, 1 of 3 | +{} %, 2 of 3 | +{} %, 2 of 3 |",
        gains("ciao-any", [0, 1, 2]),
    ),
    Claim("README.md", "| paper, Table 2 | | {} | {} | {} |", PAPER_CELLS),
    Claim(
        "README.md",
        "| preset `paper` | 36,300 | {} ± {} | {} ± {} | {} ± {} |",
        [one for model in MODELS for one in table2("VerFedGNN", model, "ML-1M, here", 0, 1)],
    ),
    Claim(
        "README.md",
        "| preset `best` | 67,800 | {} ± {} | {} ± {} | {} ± {} |",
        [one for g in MODELS for one in cell("frontier.md", f"ml-1m | {g.lower()} |", "test RMSE", 0, 1)],
    ),
    Claim(
        "README.md",
        "a rating: RMSE {}; at home {}, no ε |",
        PRIVATE + SERVED_PRIVATE,
    ),
    *(
        Claim(
            "docs/is-it-for-me.md",
            f"| {words} | +{{}} % | +{{}} % | +{{}} % | +{{}} % |",
            sources(case, [0, 1, 2]),
        )
        for words, case, sources in (
            ("one film catalogue, cut into ten parties", "ml-1m", equal_gains),
            ("the same by genre, three parties", "genre", equal_gains),
            ("two real shops, books and films", "amazon", equal_gains),
            ("four unlike categories of a review site", "ciao-any", gains),
        )
    ),
    Claim(
        "docs/is-it-for-me.md",
        "the federated model has an RMSE of {}. Plain means over all data have {}, so the model gains less",
        lift("book-crossing", [0, 1, 2], ["federated"])
        + table2("User and item means", "", "BookCrossing, here"),
    ),
    Claim(
        "docs/is-it-for-me.md",
        "which items your customers have (F1 {}, guess {}); which of their own customers are elsewhere | {} |",
        cell("attacks.md", "best, masked | 0.86", "one party with fake accounts", 0, 2) + BEST_CELLS[2:],
    ),
    Claim(
        "docs/is-it-for-me.md",
        "a hint at single items (AUC {}, guess 0.5; {} with `--set model.raters=0`) | {} |",
        table_attack("ten parties | 0, 1, 2 | one party with")
        + table_attack("ten parties, without the second model | 0, 1, 2 | one party with")
        + NO_EXCHANGE,
    ),
    Claim(
        "docs/is-it-for-me.md",
        "a blurred view of who is elsewhere | {}; {} as each party serves it |",
        PRIVATE + SERVED_PRIVATE,
    ),
    Claim(
        "docs/is-it-for-me.md", "| stay alone | nothing | nothing | {} |", lift("ml-1m", [0, 1, 2], ["alone"])
    ),
    Claim(
        "docs/is-it-for-me.md",
        "| {} s of one core, {} GB of memory, {} MB of traffic |",
        scale_row("all users | ", "party, CPU / wall s")
        + scale_row("all users | ", "its memory, GB")[:1]
        + scale_row("all users | ", "MB a party and round"),
    ),
    Claim(
        "docs/is-it-for-me.md",
        "a twentieth of the users a round | {} s, {} MB |",
        scale_row("1/20 of the users", "party, CPU / wall s")
        + scale_row("1/20 of the users", "MB a party and round"),
    ),
    Claim("docs/is-it-for-me.md", "| {} ms at the 99th", cell("serving.md", "1 | 1000 | 11.8", "p99")),
    Claim("docs/is-it-for-me.md", "ten parties | {} ms a round |", cell("federation.md", "overhead", "ms")),
    Claim(
        "docs/is-it-for-me.md",
        "| {} MB for each party in 300 rounds of ratings, {} MB in 800 rounds of lists |",
        megabytes("ml-1m", 0),
    ),
    Claim(
        "docs/faq.md",
        "with books and movies it gains {} and {} % of RMSE",
        percent(AMAZON_BOOKS[2:3], AMAZON_BOOKS[1:2]) + percent(AMAZON_MOVIES[2:3], AMAZON_MOVIES[1:2]),
    ),
    Claim(
        "docs/faq.md",
        "preset `best` reaches a test RMSE of {} with GCN. Without federation, each party alone reaches {} with the same"
        " model, and {} with the GCN of preset `paper`. On pooled data, tuned matrix factorisation with biases"
        " reaches {}, and user and item means {}.",
        [
            BEST_CELLS[0],
            *lift("ml-1m", [0, 1, 2], ["alone"]),
            *table2("Each party alone", "GCN"),
            *table2("MF with biases, tuned", ""),
            *table2("User and item means", ""),
        ],
    ),
    Claim(
        "docs/faq.md",
        "preset `best` with GCN reaches {}, and pooled means {}.",
        lift("book-crossing", [0, 1, 2], ["federated"])
        + table2("User and item means", "", "BookCrossing, here"),
    ),
    Claim(
        "docs/faq.md",
        "NDCG@20 of {} on ML-1M. LightGCN, trained on pooled data without protection, reaches {}",
        best("ml-1m gcn", "test NDCG@20") + best("lightgcn", "NDCG@20"),
    ),
    Claim(
        "docs/faq.md",
        "takes {} s of one core, {} GB of memory and {} MB of traffic.",
        scale_row("all users | ", "party, CPU / wall s")
        + scale_row("all users | ", "its memory, GB")[:1]
        + scale_row("all users | ", "MB a party and round"),
    ),
    Claim(
        "docs/faq.md",
        "a twentieth of the users takes {} s and {} MB.",
        scale_row("1/20 of the users", "party, CPU / wall s")
        + scale_row("1/20 of the users", "MB a party and round"),
    ),
    Claim(
        "docs/faq.md",
        "GCN reaches {} (paper {}), GAT {} ({}) and GGNN {} ({})",
        [one for pair in zip(OUR_CELLS, PAPER_CELLS, strict=True) for one in pair],
    ),
    Claim("docs/faq.md", "as the paper does, and reaches {}, {} and {}.", BEST_CELLS),
    Claim(
        "docs/privacy.md",
        "the projection is obfuscation | {}-{} |",
        [lambda: min(one() for one in OUR_CELLS), lambda: max(one() for one in OUR_CELLS)],
    ),
    Claim(
        "docs/privacy.md",
        "for single items (below) | {}-{} |",
        [lambda: min(one() for one in BEST_CELLS), lambda: max(one() for one in BEST_CELLS)],
    ),
    Claim(
        "docs/privacy.md",
        "every role that sees the sums and the model | {}; as served at home {} |",
        PRIVATE + SERVED_PRIVATE,
    ),
    Claim("docs/model.md", "the RMSE falls from {} to {}", COMMON_PRIVATE + SERVED_PRIVATE),
    Claim(
        "docs/privacy.md",
        "| each party alone (model of preset `best`) | nothing | everything | {} |",
        lift("ml-1m", [0, 1, 2], ["alone"]),
    ),
    Claim("docs/privacy.md", "| single ratings: test RMSE | {} | {} |", persons("single ratings")),
    Claim(
        "docs/privacy.md",
        "all channels together show at least {}. With an eighth of the noise they show {}, and {} if the noise",
        cell("epsilon-audit.md", f"4 | 4.00 | 1,000 | {PLANTED}", "ε at least")
        + cell("epsilon-audit.md", f"4, noise / 8 | 4.00 (false) | 1,000 | {PLANTED}", "ε at least")
        + cell("epsilon-audit.md", f"4, noise / 8 | 4.00 (false) | 1,000 | {PLANTED}", "ε if Gaussian"),
    ),
    Claim(
        "docs/privacy.md",
        "| single ratings: ε of the median user | {} | {} |",
        cell("persons.md", "ML-1M | 4 | 25", "ε of the median user")
        + cell("persons.md", "ML-1M | 8 | 56", "ε of the median user"),
    ),
    Claim("docs/privacy.md", "| `--protect user`: test RMSE | {} | {} |", persons("users, K = 16")),
    *(
        Claim(
            "docs/privacy.md",
            f'| {words}: AUC of "who is elsewhere" | {{}} | {{}} |',
            cell("persons.md", f"{row}, ε = 4", "AUC") + cell("persons.md", f"{row}, ε = 8", "AUC"),
        )
        for words, row in (("single ratings", "single ratings"), ("`--protect user`", "users"))
    ),
    Claim(
        "docs/privacy.md",
        "| one party with fake accounts | {} | {} |",
        cell("attacks.md", "noised 0.05 | 0", "one party with fake accounts", 0, 2),
    ),
    Claim(
        "docs/privacy.md",
        "| the same, sixteen fakes an item | {} | {} |",
        cell("attacks.md", "noised 0.05, 16 fakes an item | 0", "one party with fake accounts", 0, 2),
    ),
    Claim(
        "docs/privacy.md",
        "| one party that knows the target's messages | {} | {} |",
        cell("attacks.md", "noised 0.05 | 0", "one party, insider", 0, 2),
    ),
    Claim(
        "docs/privacy.md",
        "| all parties but one, with fake accounts | {} | {} |",
        cell("attacks.md", "noised 0.05 | 0", "all but one, with fake accounts", 0, 2),
    ),
    Claim(
        "docs/privacy.md",
        "the AUC is {} under preset `best`. Under `private` it is {} at ε = 4 and {} at ε = 1",
        cell("attacks.md", "synthetic | preset best | 60", "strongest attack")
        + cell("attacks.md", "synthetic | preset private, epsilon 4", "strongest attack")
        + cell("attacks.md", "synthetic | preset private, epsilon 1", "strongest attack"),
    ),
    Claim(
        "docs/privacy.md",
        "which costs {} of RMSE on ML-100K and {} on ML-1M.",
        difference(
            cell("attacks.md", "best, no exchange", "test RMSE"),
            cell("attacks.md", "best, masked", "test RMSE"),
        )
        + difference(best("ml-1m gcn, no exchange"), best("ml-1m gcn |")),
    ),
    Claim(
        "docs/privacy.md",
        "costs {} of RMSE on ML-100K and on ML-1M, and defeats",
        difference(
            cell("attacks.md", "best, noised 0.05", "test RMSE"),
            cell("attacks.md", "best, masked", "test RMSE"),
        ),
    ),
    Claim(
        "docs/privacy.md",
        "It costs {} of RMSE on ML-1M with GGNN.",
        difference(NO_EXCHANGE, BEST_CELLS[2:]),
    ),
    Claim("docs/privacy.md", "GGNN without any exchange, {}, still", NO_EXCHANGE),
    Claim(
        "docs/privacy.md",
        "falls from an AUC of {} to {} (three seeds). It is {} for a model that never saw them.",
        cell("forget.md", "before", "AUC of the attack")
        + cell("forget.md", "after", "AUC of the attack")
        + cell("forget.md", "never saw the users", "AUC of the attack"),
    ),
    Claim(
        "docs/privacy.md",
        "their RMSE is {} instead of {}.",
        cell("forget.md", "after", "RMSE of the others")
        + cell("forget.md", "never saw the users", "RMSE of the others"),
    ),
]

FIGURES_FROM = {
    "docs/paper.md": ["paper/*.md", "core.md", "lift.md"],
    "docs/paper-notes.md": ["paper/table2.md", "core.md", "lift.md"],
    "docs/serving.md": ["fold-in.md", "merged-lists.md"],
}
"""By page: files of results/ that contain its other figures with four decimals, printed alike."""
EARLIER = "a validation RMSE of the search described there, whose records are not kept"
NOT_FROM_RESULTS: dict[str, dict[str, str]] = {
    "docs/paper-notes.md": dict.fromkeys(
        [
            "1.7739",
            "1.6048",
            "1.6034",
            "1.6187",
            "0.9153",
            "0.9151",
            "0.9088",
            "0.9143",
            "0.9159",
            "0.9115",
            "0.9162",
            "0.9134",
            "0.9160",
            "0.9181",
            "0.9201",
            "0.9200",
            "1.5964",
            "0.9581",
            "0.9592",
            "0.9683",
            "0.9725",
            "0.9707",
            "1.6576",
            "1.6589",
            "1.6999",
            "1.6994",
            "1.6483",
            "1.6470",
        ],
        EARLIER,
    ),
    "docs/paper.md": dict.fromkeys(
        ["1.6474", "1.6506", "1.6509", "1.6423"], "GGNN on BookCrossing since commit f3bf52f, seeds 0-2 and 0"
    ),
    "docs/tutorials/paper.md": dict.fromkeys(
        [
            "1.0000",
            "0.7508",
            "0.8577",
            "0.1894",
            "0.0440",
            "0.0252",
            "0.0320",
            "0.2481",
            "0.0377",
            "0.0256",
            "0.0305",
            "0.2483",
        ],
        "rows of the quick Table 3, which the reader makes",
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


def test_a_wrong_number_is_noticed() -> None:
    right = Claim("x", "reaches {} here", cell("privacy.md", "ML-1M", "ε = 4 (z = 11.71)"))
    assert wrong_numbers(right, "it reaches 0.9067 here") == []
    assert wrong_numbers(right, "it reaches 0.907 here") == []
    assert wrong_numbers(right, "it reaches 0.9066 here") != []
    assert wrong_numbers(right, "it reaches 0.906 here") != []


def test_the_paper_page_has_the_tables_of_results(tmp_path: Path) -> None:
    page = tmp_path / "docs" / "paper.md"
    page.parent.mkdir()
    shutil.copy(ROOT / "docs" / "paper.md", page)
    shutil.copytree(RESULTS / "paper", tmp_path / "results" / "paper")
    fill_page(page, tmp_path / "results" / "paper")
    assert page.read_text("utf-8") == (ROOT / "docs" / "paper.md").read_text("utf-8")
