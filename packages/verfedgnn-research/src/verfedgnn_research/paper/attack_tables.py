"""Tables 3, 4, 5 and 7: de-anonymisation from neighbourhoods and gradients, next to a guess by popularity."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from verfedgnn_research.attacks.attack_cell import EPOCHS, SHARES, VICTIMS, AttackCell
from verfedgnn_research.attacks.attack_scores import Scores
from verfedgnn_research.attacks.paper_attacks import ATTACKED
from verfedgnn_research.attacks.subset_search import MOST
from verfedgnn_research.baselines import method
from verfedgnn_research.experiments.result_tables import markdown, mean_std
from verfedgnn_research.experiments.training_cell import Cell
from verfedgnn_research.paper import published
from verfedgnn_research.paper.paper_experiment import (
    GNNS,
    PARTIES,
    TITLES,
    CellResults,
    Experiment,
    PaperScope,
    write_table,
)
from verfedgnn_research.paper.published import AttackRow as Row
from verfedgnn_research.paper.published import AttackScores as Published
from verfedgnn_research.paper.table2 import verdict

SEEN = {
    "neighbourhood": {
        "fedpergnn": "anonymous item embeddings",
        "fedsage+": "generated",
        "verfedgnn": "with projection",
    },
    "exact": {"fedsage+": "what trains its generator", "verfedgnn": "without projection"},
    "gradients": {"fedpergnn": "as sent", "fedsage+": "as sent", "verfedgnn": "as sent"},
    "open gradients": {"fedpergnn": "before protection", "verfedgnn": "before protection"},
}
"""What the attacker looks at, by attack and method."""

AROUND = 0.15
"""Tolerance of recall around p_ad, its expected value: adversaries rate random items, and popular items
weigh more.
"""

HEADER = ["p_ad", "method", "model", "what is seen"]
for _figure in ("precision", "recall", "F1"):
    HEADER += [f"{_figure}, paper", f"{_figure}, here"]
HEADER += ["F1 of the guess", "above the guess", "F1 misplaced", "above that"]


@dataclass(frozen=True)
class Seed:
    """The scores of an attack with one seed, next to those it is compared with."""

    number: int
    scores: Scores
    guess: Scores
    misplaced: Scores


Judged = Callable[[Row], list[Seed]]
"""Function that returns the scores of a row, one per seed."""
Claim = tuple[str, list[bool]]
"""A claim in words, and whether it holds for each seed."""

OURS = "*ours:* "
"""Prefix of claims that the paper does not make."""
IN_PAPER = ("gcn", "ggnn")
"""GNNs in the paper's Tables 4 and 5."""


@dataclass(frozen=True)
class AttackTable:
    """One of the four tables."""

    name: str
    title: str
    place: int
    """Position of the table's data set in a scope."""
    published_on: str
    paper: dict[Row, Published]
    rows: tuple[Row, ...]
    claims: Callable[[Judged], list[Claim]]

    def cells(self, scope: PaperScope) -> list[Cell]:
        """Return one training per method, GNN and seed; tables share them."""
        wanted = dict.fromkeys((name, gnn) for name, gnn, _, _ in self.rows)
        return [
            attack_cell(scope.data[self.place], *each, seed) for each in wanted for seed in range(scope.seeds)
        ]

    def write(self, records: CellResults, scope: PaperScope, folder: Path) -> str:
        """Write the table next to the paper's and return its page with the claims."""
        data = scope.data[self.place]

        def scores(row: Row) -> list[Seed]:
            name, gnn, attack, share = row
            cells = {seed: attack_cell(data, name, gnn, seed) for seed in range(scope.seeds)}
            found = {
                seed: records[cell]["attacks"][attack][f"{share:g}"]
                for seed, cell in cells.items()
                if cell in records
            }
            parts = {seed: (each, each["guess"], each["misplaced"]) for seed, each in found.items()}
            return [Seed(seed, *map(Scores.from_dict, each)) for seed, each in parts.items()]

        paper = self.paper if data == self.published_on else {}
        lines = [_line(row, scores(row), paper.get(row)) for row in self.rows]
        holds = [[claim, *_verdict(claim, each, scope.seeds)] for claim, each in self.claims(scores)]
        few = statistics.mean([record["few"] for record in records.values()] or [0.0])
        text = (
            f"{TITLES[data]}, {PARTIES} parties. Precision, recall and F1 over up to {VICTIMS} honest users with a neighbour at "
            f"the attacked party ({few:.0%} of them with at most {MOST}), mean ± standard deviation over seeds, after {EPOCHS} "
            "epochs. The guess claims as many items of that party, the most popular; an attack that is not above it is worth "
            "nothing by itself. *Misplaced* is what the same claims reach for all victims alike; an attack above it has seen "
            "something of its victim. Claims marked *ours* are not the paper's.\n\n"
        )
        table = write_table(folder, self.name, HEADER, lines)
        return f"{text}{table}\n{markdown(['claim', 'holds on', 'verdict'], holds)}"

    @property
    def experiment(self) -> Experiment:
        """The table as an experiment."""
        return Experiment(self.name, self.title, self.cells, self.write)


def attack_cell(data: str, name: str, gnn: str, seed: int) -> AttackCell:
    """Return a training with adversaries; a quick scope does not shorten it."""
    return AttackCell((data,), name, gnn, seed, PARTIES, (("training.epochs", EPOCHS),))


def _line(row: Row, ours: Sequence[Seed], paper: Published | None) -> list[str]:
    name, gnn, attack, share = row
    line = [f"{share:g}", method(name).title, gnn.upper(), SEEN[attack][name]]
    for place, figure in enumerate(("precision", "recall", "f1")):
        line.append("" if paper is None else f"{paper[place][0]:.4f} ± {paper[place][1]:.4f}")
        line.append(mean_std(getattr(seed.scores, figure) for seed in ours))
    for other in ([seed.guess.f1 for seed in ours], [seed.misplaced.f1 for seed in ours]):
        above = sum(seed.scores.f1 > f1 for seed, f1 in zip(ours, other, strict=True))
        line += [mean_std(other), f"{above} of {len(ours)}" if ours else "-"]
    return line


def _verdict(claim: str, holds: Sequence[bool], seeds: int) -> list[str]:
    """Return the columns of a verdict; a claim that is not the paper's cannot contradict it."""
    found = verdict(holds, seeds)
    return [
        word.replace("**contradicted**", "on no seed") if claim.startswith(OURS) else word for word in found
    ]


def _below_guess(judged: Judged, row: Row, what: str) -> Claim:
    return f"{OURS}{what}: F1 at or below the guess", [
        seed.scores.f1 <= seed.guess.f1 for seed in judged(row)
    ]


def _above_guess(judged: Judged, row: Row, what: str) -> Claim:
    return f"{OURS}{what}: F1 above the guess", [seed.scores.f1 > seed.guess.f1 for seed in judged(row)]


def _lower(judged: Judged, low: Row, high: Row, what: str) -> Claim:
    above = {seed.number: seed.scores.f1 for seed in judged(high)}
    return what, [seed.scores.f1 < above[seed.number] for seed in judged(low) if seed.number in above]


def _table3_claims(judged: Judged) -> list[Claim]:
    found: list[Claim] = []
    for share in SHARES:
        per, sage, ver = ((name, "gcn", "neighbourhood", share) for name in ATTACKED)
        found += [
            (
                f"p_ad = {share:g}, FedPerGNN: precision 1.00",
                [seed.scores.precision == 1 for seed in judged(per)],
            ),
            (
                f"p_ad = {share:g}, FedPerGNN: recall within {AROUND} of p_ad",
                [abs(seed.scores.recall - share) <= AROUND for seed in judged(per)],
            ),
            _lower(judged, sage, per, f"p_ad = {share:g}: FedSage+ below FedPerGNN"),
            _lower(judged, ver, sage, f"p_ad = {share:g}: VerFedGNN below FedSage+"),
            _below_guess(judged, ver, f"p_ad = {share:g}, VerFedGNN"),
        ]
    return found


def _projection_claims(judged: Judged) -> list[Claim]:
    found: list[Claim] = []
    for gnn in GNNS:
        seen, exact = (("verfedgnn", gnn, attack, 0.5) for attack in ("neighbourhood", "exact"))
        found += [
            _lower(
                judged,
                seen,
                exact,
                f"{'' if gnn in IN_PAPER else OURS}{gnn.upper()}: F1 lower with projection",
            ),
            _below_guess(judged, seen, f"{gnn.upper()}, with projection"),
            _above_guess(judged, exact, f"{gnn.upper()}, without projection"),
        ]
    return found


def _table7_claims(judged: Judged) -> list[Claim]:
    found: list[Claim] = []
    for share in SHARES:
        per, sage, ver = ((name, "gcn", "gradients", share) for name in ATTACKED)
        found += [
            _lower(judged, ver, per, f"p_ad = {share:g}: VerFedGNN below FedPerGNN"),
            _lower(judged, ver, sage, f"p_ad = {share:g}: VerFedGNN below FedSage+"),
            _below_guess(judged, ver, f"p_ad = {share:g}, VerFedGNN"),
        ]
    return found


def _rows(attacks: Sequence[tuple[str, str]]) -> tuple[Row, ...]:
    """Return rows for GCN and every p_ad, from (method, attack) pairs."""
    return tuple((name, "gcn", attack, share) for share in SHARES for name, attack in attacks)


_PROJECTION: tuple[Row, ...] = tuple(
    ("verfedgnn", gnn, attack, 0.5) for attack in ("neighbourhood", "exact") for gnn in GNNS
)
"""Rows of Tables 4 and 5. The paper's tables lack GAT, whose attack is in App. H."""

TABLE3 = AttackTable(
    "table3",
    "Table 3: attack accuracy for three federated algorithms, GCN",
    0,
    "ml-1m",
    published.TABLE3,
    _rows([*((name, "neighbourhood") for name in ATTACKED), ("fedsage+", "exact")]),
    _table3_claims,
).experiment
TABLE4 = AttackTable(
    "table4",
    "Table 4: attack accuracy with and without random projection, ML-1M",
    0,
    "ml-1m",
    published.TABLE4,
    _PROJECTION,
    _projection_claims,
).experiment
TABLE5 = AttackTable(
    "table5",
    "Table 5: attack accuracy with and without random projection, BookCrossing",
    -1,
    "book-crossing",
    published.TABLE5,
    _PROJECTION,
    _projection_claims,
).experiment
TABLE7 = AttackTable(
    "table7",
    "Table 7: attack accuracy against gradients, GCN",
    0,
    "ml-1m",
    published.TABLE7,
    _rows(
        [
            *((name, "gradients") for name in ATTACKED),
            ("fedpergnn", "open gradients"),
            ("verfedgnn", "open gradients"),
        ]
    ),
    _table7_claims,
).experiment
