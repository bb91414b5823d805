"""The report of an audit, written for a security reviewer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from verfedgnn.core.version import installed_version
from verfedgnn.privacy.visibility import HEADER, who_sees_what
from verfedgnn.reports.document import Document, Heading, Paragraph, Picture, Points, Table
from verfedgnn.reports.drawing import draw_attacks, draw_tradeoff
from verfedgnn.reports.privacy_card import add_guarantees
from verfedgnn.research.attacks.audit import THIS, Audit

MARGIN = 0.02
"""Margin above the guess up to which an attack counts as a guess: about two standard errors with 500
victims.
"""


@dataclass(frozen=True)
class Attacker:
    """An attacker, its means and its goal; `names` is the prefix of its attacks on sums."""

    title: str
    needs: str
    learns: str
    names: str = ""


ATTACKERS = {
    "party": Attacker(
        "one party", "fake accounts at another party, one item each; or its item embeddings (an insider)",
        "which items the other party's users have there", "party,",
    ),
    "colluders": Attacker(
        "all parties but one, colluding", "the same, and each other's messages",
        "which items the last party's users have there", "colluders,",
    ),
    "coordinator": Attacker("the coordinator", "the gradients it receives, kept over rounds", "who has ratings at which party"),
    "outsider": Attacker("anybody with the final model", "a rating known from elsewhere", "whether it was trained on"),
}  # fmt: skip


@dataclass(frozen=True)
class Reached:
    """The strongest attack of one attacker, next to guessing."""

    attacker: str
    attack: str
    figure: str
    found: float
    guess: float

    @property
    def learnt(self) -> bool:
        """Whether the attack learnt more than a guess."""
        return self.found > self.guess + MARGIN


def strongest(found: Mapping[str, Any]) -> list[Reached]:
    """Return the strongest attack of every attacker on one variant; attackers without an applicable attack
    are left out.
    """
    reached = []
    for name in ("party", "colluders"):
        attacks = {k: v for k, v in found["sums"].items() if k.startswith(ATTACKERS[name].names)}
        if attacks:
            best = max(attacks, key=lambda k: attacks[k]["f1"] - attacks[k]["guess"]["f1"])
            reached.append(Reached(name, best, "F1", attacks[best]["f1"], attacks[best]["guess"]["f1"]))
    rounds = found["gradients"]["rounds"]
    if rounds:
        number, last = list(rounds.items())[-1]
        if "any" in last:
            reached.append(
                Reached("coordinator", f"{number} rounds of gradients", "AUC", last["any"], last["guess"])
            )
    told = found["model"]["membership"]
    if told is not None:
        reached.append(Reached("outsider", "size of the error", "AUC", told["training"]["auc"], 0.5))
    return reached


def audit_document(audit: Audit) -> Document:
    """Build the report: findings with their assumptions, and what to change."""
    run = audit.run
    found = audit.found[THIS]
    document = Document("Privacy audit")
    names = ", ".join(party.name for party in run.parties)
    users = run.parties[0].ratings.n_users
    document.add(
        Paragraph(f"A federation of {len(run.parties)} parties ({names}) with {users:,} common users, trained for "
                  f"{run.metrics['rounds']:,} rounds; test RMSE {_rmse(found)}. Who could learn what from taking part?"),
    )  # fmt: skip
    _in_short(document, found)
    document.add(Heading("Who sees what"), Table(HEADER, who_sees_what(run.config)))
    add_guarantees(document, run.metrics["privacy"])
    _attacks(document, audit)
    _changes(document, audit)
    _limits(document, audit)
    return document


def _in_short(document: Document, found: Mapping[str, Any]) -> None:
    reached = strongest(found)
    rows = [
        [ATTACKERS[r.attacker].title, ATTACKERS[r.attacker].learns, f"{r.figure} {r.found:.2f}", f"{r.guess:.2f}",
         "**yes**" if r.learnt else "no"]
        for r in reached
    ]  # fmt: skip
    leaks = [ATTACKERS[r.attacker].title for r in reached if r.learnt]
    verdict = (
        f"**More than a guess was learnt by: {'; '.join(leaks)}.**"
        if leaks
        else "**No attack here learnt more than a guess.**"
    )
    bars = draw_attacks([ATTACKERS[r.attacker].title for r in reached], [r.found for r in reached], [r.guess for r in reached],
                 "F1 (items) or AUC (ratings there, training ratings)")  # fmt: skip
    document.add(
        Heading("In short"),
        Paragraph(verdict),
        Table(["attacker", "tries to learn", "strongest attack", "guess", "more than a guess"], rows),
        Picture("attacks", "The strongest attack of each attacker, beside what anybody could guess", bars)
        if bars
        else None,
    )


def _attacks(document: Document, audit: Audit) -> None:
    found = audit.found[THIS]
    settings = audit.settings
    document.add(
        Heading("Attacks"),
        Paragraph(f"Mounted on this configuration and this data, listening to {settings['rounds']:,} rounds, against up to "
                  f"{settings['victims']:,} users."),
        Table(["attacker", "needs", "tries to learn"], [[a.title, a.needs, a.learns] for a in ATTACKERS.values()]),
    )  # fmt: skip
    if found["sums"]:
        rows = [[name, *(f"{row[k]:.3f}" for k in ("precision", "recall", "f1")), f"{row['guess']['f1']:.3f}"]
                for name, row in found["sums"].items()]  # fmt: skip
        document.add(
            Paragraph("**Which items users have**, read from summed neighbourhoods. The guess claims as many items, the most "
                      "popular ones."),
            Table(["attack", "precision", "recall", "F1", "F1 of the guess"], rows),
        )  # fmt: skip
    else:
        document.add(
            Paragraph(
                "**Which items users have**: no neighbourhoods are exchanged, so there is nothing to read."
            )
        )
    rows = [[number, *(f"{row[k]:.3f}" if k in row else "–" for k in ("any", "guess", "degree"))]
            for number, row in found["gradients"]["rounds"].items()]  # fmt: skip
    document.add(
        Paragraph("**Who has ratings at which party**, read by the coordinator from gradients of users. The guess knows how many "
                  "ratings a user has in all."),
        Table(["rounds", "AUC", "AUC of the guess", "correlation with how many"], rows),
    )  # fmt: skip
    told = found["model"]["membership"]
    if told is not None:
        rows = [[name, f"{told[k]['auc']:.3f} ± {told[k]['auc_error']:.3f}", f"{told[k]['advantage']:.3f}"]
                for name, k in (("training", "training"), ("validation (a control: should be 0.5)", "validation"))]  # fmt: skip
        document.add(
            Paragraph("**Which ratings trained the model**, told from test ratings by their error."),
            Table(["ratings", "AUC", "advantage"], rows),
        )


def _changes(document: Document, audit: Audit) -> None:
    others = [name for name in audit.variants if name != THIS]
    if not others:
        return
    base = audit.found[THIS]["model"]["rmse"]
    header = [
        "variant",
        "test RMSE",
        "change",
        *(ATTACKERS[a].title for a in ATTACKERS),
        "epsilon for a rating",
    ]
    rows = []
    names = []
    learnt = []
    cost = []
    helps: dict[str, list[tuple[float, str]]] = {
        r.attacker: [] for r in strongest(audit.found[THIS]) if r.learnt
    }
    for name in audit.variants:
        found = audit.found[name]
        reached = {r.attacker: r for r in strongest(found)}
        figures = [
            f"{r.figure} {r.found:.2f} ({r.guess:.2f})" if (r := reached.get(a)) else "nothing to see"
            for a in ATTACKERS
        ]
        composed = found["model"]["privacy"]["gradients"]
        epsilon = f"{composed['composed']['epsilon']:.3g}" if composed["mechanism"] == "skellam" else "none"
        rmse = found["model"]["rmse"]
        change = None if rmse is None or base is None else rmse - base
        rows.append([name, _rmse(found), "–" if change is None else f"{change:+.4f}", *figures, epsilon])
        if change is not None:
            names.append(name)
            learnt.append(max((r.found - r.guess for r in reached.values()), default=0.0))
            cost.append(change)
            for attacker, ways in helps.items():
                if attacker not in reached or not reached[attacker].learnt:
                    ways.append((change, name))
    picture = draw_tradeoff(
        names, learnt, cost, ("strongest attack above its guess", "test RMSE more than this run's")
    )
    advice = [
        f"Against {ATTACKERS[attacker].title}: "
        + (
            f"**{min(ways)[1]}** ({min(ways)[0]:+.4f} of RMSE)."
            if ways
            else "none of these keeps it to a guess."
        )
        for attacker, ways in helps.items()
    ]
    document.add(
        Heading("What to change to be safer, and what it costs"),
        Paragraph(
            "Each variant was trained and attacked on this run's data, with one seed. In brackets: the guess."
        ),
        Table(header, rows),
        Paragraph("The least costly change after which an attacker learns no more than a guess:")
        if advice
        else None,
        Points(advice) if advice else None,
        Picture("changes", "What the strongest attack learns, and what avoiding it costs", picture)
        if picture
        else None,
        Points([f"`{name}`: {HOW[name]}" for name in others]),
    )


HOW = {
    "masks": "`--set masking=true`: the coordinator sees sums only; the result is the same to the bit.",
    "noise on the sums": "`--set exchange.mode=noised --set exchange.noise=0.05 --set exchange.row_clip=1`: blurs what "
    "one exchange shows; who keeps many averages it out.",
    "no exchange": "`--set exchange.mode=off`: only masked gradients leave a party.",
    "preset private": "`--preset private --epsilon 4`: differential privacy of every single rating over the whole training.",
}


def _limits(document: Document, audit: Audit) -> None:
    run = audit.run
    document.add(
        Heading("What this audit does not say"),
        Points([
            "Attacks are lower bounds: a better one may exist. Guarantees are upper bounds: they alone hold against everybody.",
            "Attackers here are curious, not malicious: none sends false messages, apart from opening fake accounts.",
            "Who the common users are is settled before training, by alignment, and is not attacked here.",
            "One seed and one pair of attacker and target; figures for other data sets are in `results/attacks.md`.",
        ]),
        Heading("How it was made"),
        Paragraph(f"verfedgnn {installed_version()}, configuration `{run.config.fingerprint()}`, seed {run.config.seed}, "
                  f"{audit.settings['rounds']:,} rounds, {audit.settings['victims']:,} victims; all findings are in "
                  "`findings.json` beside this page."),
    )  # fmt: skip


def _rmse(found: Mapping[str, Any]) -> str:
    value = found["model"]["rmse"]
    return "–" if value is None else f"{value:.4f}"
