"""The report of an audit, written for a security reviewer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from verfedgnn.core.installed import installed_version
from verfedgnn.privacy.visibility import HEADER, who_sees_what
from verfedgnn.reports.document import Banner, Document, Heading, Paragraph, Points, Table, Tone
from verfedgnn.reports.run_report import add_guarantees
from verfedgnn_research.attacks.audit import THIS, Audit
from verfedgnn_research.attacks.overlap_attack import FEWEST, ROUNDS, USERS

MARGIN = 0.03
"""Margin above the guess up to which an attack counts as a guess: about two standard errors with 200 victims."""
LEARNT_TONES: dict[str, Tone] = {"yes": "bad", "no": "good"}
NEARLY_CERTAIN = 0.9
"""AUC from which on a party is said to see which of its users are elsewhere."""


@dataclass(frozen=True)
class Attacker:
    """An attacker, its means and its goal; `names` is the prefix of its attacks on items."""

    title: str
    needs: str
    learns: str
    names: str = ""
    verb: str = "learns"


ITEMS_THERE = "which items the other party's users have there"
ATTACKERS = {
    "fakes": Attacker(
        "a party with fake accounts", "accounts at another party, one item each, and the sums of all rounds", ITEMS_THERE, "party, fakes",
    ),
    "insider": Attacker(
        "a party with an insider", "another party's item vectors in every round, which an insider there tells", ITEMS_THERE, "party, insider",
    ),
    "colluders": Attacker(
        "all other parties together", "fake accounts or an insider, and each other's releases", ITEMS_THERE, "colluders,", "learn",
    ),
    "both": Attacker(
        "a party that compares both trainings", "fake accounts, and the sums of the judged training and of that on all ratings",
        "what the other party's users rated since", "party, both trainings",
    ),
    "tables": Attacker(
        "a reader of the public tables", "the final public tables, and half of an item's users from elsewhere", "who else has the item",
        "public tables",
    ),
    "rating": Attacker(
        "a party that knows all but one rating", "everything else about the training", "whether the rating is there", "one rating",
    ),
    "overlap": Attacker(
        "a party that only takes part", "the sums that it receives in training, without its own part",
        "which of its users are at other parties",
    ),
    "coordinator": Attacker("the coordinator", "the gradients it receives, recorded over many rounds", "who has ratings at which party"),
    "outsider": Attacker("an outsider with the final model", "a rating known from elsewhere", "whether the rating was in the training data"),
}  # fmt: skip


@dataclass(frozen=True)
class Reached:
    """The strongest attack of one attacker, next to guessing."""

    attacker: str
    attack: str
    figure: str
    found: float
    guess: float
    margin: float = MARGIN

    @property
    def learnt(self) -> bool:
        """Whether the attack learnt more than a guess."""
        return self.found > self.guess + self.margin


def strongest(found: Mapping[str, Any]) -> list[Reached]:
    """Return the strongest attack of every attacker on one variant; attackers without an applicable attack
    are left out.
    """
    reached = []
    for name in ("fakes", "insider", "colluders", "both", "tables", "rating"):
        attacks = {
            f"{attack}, {part}": figures
            for part in ("items", "lists")
            for attack, figures in found[part].items()
            if attack.startswith(ATTACKERS[name].names)
        }
        if attacks:
            best = max(attacks, key=lambda k: headline_figure(attacks[k]))
            reached.append(Reached(name, best, "AUC", headline_figure(attacks[best]), 0.5))
    attacks = found["overlap"]["attacks"]
    if attacks:
        best = max(attacks, key=lambda k: attacks[k]["auc"])
        guess = max(0.5, found["overlap"]["guess"])
        margin = max(MARGIN, 2 * attacks[best]["error"])
        reached.append(Reached("overlap", best, "AUC", attacks[best]["auc"], guess, margin))
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


def headline_figure(figures: Mapping[str, float | None]) -> float:
    """Return the AUC that tells more than tastes: against held-out ratings, or where there are none, over all pairs."""
    found = figures.get("held")
    return float((figures["all"] if found is None else found) or 0.5)


def summarise_findings(found: Mapping[str, Any]) -> tuple[str, str]:
    """Return the headline of one variant's findings, and who learns what in words."""
    reached = strongest(found)
    leaks = [
        f"{ATTACKERS[r.attacker].title} {ATTACKERS[r.attacker].verb} {ATTACKERS[r.attacker].learns}"
        for r in reached
        if r.learnt
    ]
    if not leaks:
        return (
            "No attack learnt more than a guess.",
            "Attacks are lower bounds; only guarantees hold against everybody.",
        )
    return (
        f"{len(leaks)} of {len(reached)} attackers learnt more than a guess.",
        f"{_capitalize('; '.join(leaks))}.",
    )


def audit_document(audit: Audit) -> Document:
    """Build the report: findings with their assumptions, and what to change."""
    run = audit.run
    document = Document("Privacy audit")
    names = ", ".join(party.name for party in run.parties)
    users = run.parties[0].ratings.n_users
    _add_verdict(document, audit)
    document.add(
        Paragraph(f"A federation of {len(run.parties)} parties ({names}) with {users:,} users, trained for "
                  f"{run.metrics['rounds']:,} rounds. The run has a test RMSE of {_format_rmse(run.metrics['test']['rmse'])} on all its "
                  "data. This report says what each participant could learn."),
    )  # fmt: skip
    document.add(
        Heading("Who sees what"), Table(HEADER, who_sees_what(run.config, len(run.parties)), "Who sees what")
    )
    add_guarantees(document, run.metrics["privacy"])
    if "lists" in run.metrics:
        add_guarantees(document, run.metrics["lists"]["privacy"], "Privacy guarantees of the lists' training")
    _attacks(document, audit)
    _changes(document, audit)
    _limits(document, audit)
    return document


def _add_verdict(document: Document, audit: Audit) -> None:
    """Add the verdict and a table of the strongest attack of each attacker."""
    found = audit.found[THIS]
    reached = strongest(found)
    rows = [
        [ATTACKERS[r.attacker].title, ATTACKERS[r.attacker].learns, r.figure, f"{r.found:.2f}", f"{r.guess:.2f}",
         "yes" if r.learnt else "no"]
        for r in reached
    ]  # fmt: skip
    headline, text = summarise_findings(found)
    title = "The strongest attack of each attacker, next to a guess without an attack"
    document.add(
        Banner("bad" if any(r.learnt for r in reached) else "good", headline, text),
        Table(["attacker", "tries to learn", "figure", "strongest attack", "guess", "more than a guess"], rows, title, LEARNT_TONES),
        Paragraph("AUC: 0.5 is a coin toss, 1 is certainty. Items are told apart from held-out ratings of the same users, which fit their "
                  "tastes as well."),
    )  # fmt: skip


def _capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]


def _attacks(document: Document, audit: Audit) -> None:
    found = audit.found[THIS]
    settings = audit.settings
    document.add(
        Heading("Attacks"),
        Paragraph(f"The attacks use this configuration and data. They record {settings['rounds']:,} rounds and target up to "
                  f"{settings['victims']:,} users."),
        Paragraph(f"{audit.describe_sample()} Fewer items are easier to tell apart, so attacks reach rather more here than on all data.")
        if audit.is_sampled else None,
        Table(["attacker", "needs", "tries to learn"], [[a.title, a.needs, a.learns] for a in ATTACKERS.values()]),
    )  # fmt: skip
    _items(document, audit)
    rows = [[number, *(f"{row[k]:.3f}" if k in row else "–" for k in ("any", "guess", "degree"))]
            for number, row in found["gradients"]["rounds"].items()]  # fmt: skip
    document.add(
        Paragraph("**Who has ratings at which party**, inferred by the coordinator from user gradients. The guess uses a user's "
                  "total number of ratings."),
        Table(["rounds", "AUC", "AUC of the guess", "correlation with the number of ratings"], rows),
    )  # fmt: skip
    _overlap(document, audit)
    told = found["model"]["membership"]
    if told is not None:
        rows = [[name, f"{told[k]['auc']:.3f} ± {told[k]['auc_error']:.3f}", f"{told[k]['advantage']:.3f}"]
                for name, k in (("training", "training"), ("validation (control, expected 0.5)", "validation"))]  # fmt: skip
        document.add(
            Paragraph(
                "**Which ratings trained the model**, told apart from test ratings by their prediction error."
            ),
            Table(["ratings", "AUC", "advantage"], rows),
        )


def _items(document: Document, audit: Audit) -> None:
    """Add what each attack on items reaches, from the trainings of ratings and of lists, in each variant."""
    rows = []
    for name in audit.variants:
        for part, training in (("items", "ratings"), ("lists", "lists")):
            for attack, figures in audit.found[name][part].items():
                values = [figures.get(key) for key in ("guess", "all", "within", "held", "alone")]
                rows.append(
                    [name, training, attack, *("–" if value is None else f"{value:.3f}" for value in values)]
                )
    document.add(
        Paragraph("**Which items users have**, inferred from the releases of all rounds by someone who knows the algorithm. "
                  "The figures are AUCs; the guess knows how popular an item is. *Same item* compares users for one item, where "
                  "popularity says nothing. *Against held-out* compares training ratings with held-out ratings of the same item: "
                  "users' tastes fit both, so 0.5 means that the releases show tastes and nothing more. *Two parties* is the same for "
                  "users who are at no third party, so that no other row hides theirs."),
        Table(["variant", "training", "attack", "guess", "AUC", "same item", "against held-out", "two parties"], rows),
    )  # fmt: skip


def _overlap(document: Document, audit: Audit) -> None:
    """Add what a party can tell about its own users: all attacks on this run, and the strongest on each variant."""
    title = "**Which of a party's users are at other parties**"
    found = audit.found[THIS]["overlap"]
    if found["guess"] is None:
        document.add(
            Paragraph(f"{title}: the question is void. No party has at least {FEWEST} users with ratings at other parties and "
                      f"{FEWEST} without. Where one catalogue is cut into parties, every user is at every party."),
        )  # fmt: skip
        return
    rows = []
    for name in audit.variants:
        attacks = audit.found[name]["overlap"]["attacks"]
        best = [each.attack for each in strongest(audit.found[name]) if each.attacker == "overlap"]
        for attack in attacks if name == THIS else best:
            figures = attacks[attack]
            rows.append([name, attack, f"{figures['auc']:.3f} ± {figures['error']:.3f}"])
    document.add(
        Paragraph(f"{title}, inferred by each party from the sums that it receives, without its own part. "
                  f"{found['rounds']:,} rounds with {found['users']:,} users were recorded; an audit records at most {ROUNDS:,} rounds "
                  f"and {USERS:,} users. AUCs are means over parties, with their standard error. "
                  f"A coin toss has 0.5. A guess by a user's number of ratings at the party has {found['guess']:.3f}."),
        Table(["variant", "attack (on variants of this run, the strongest)", "AUC"], rows) if rows else None,
        Paragraph(_overlap_in_words(audit.found[THIS])),
    )  # fmt: skip


def _overlap_in_words(found: Mapping[str, Any]) -> str:
    """Return what the AUC of the strongest attack on the overlap of users means."""
    reached = [each for each in strongest(found) if each.attacker == "overlap"]
    if not reached:
        return "No sum arrived in the recorded rounds, so a party learns nothing from them."
    (best,) = reached
    pair = (
        "Take one of a party's users who is at another party and one who is not: the party names the right one in "
        f"{best.found:.0%} of all cases."
    )
    if not best.learnt:
        return f"{pair} That is no more than a guess."
    if best.found < NEARLY_CERTAIN:
        return f"{pair} That is more than a guess, though no proof about a single user."
    return f"{pair} A user without training ratings at other parties adds only zeros to their sums."


def _changes(document: Document, audit: Audit) -> None:
    others = [name for name in audit.variants if name != THIS]
    if not others:
        return
    base = audit.found[THIS]["model"]["rmse"]
    header = [
        "variant",
        "test RMSE on the sample" if audit.is_sampled else "test RMSE",
        "change",
        *(ATTACKERS[a].title for a in ATTACKERS),
        "epsilon for a rating",
    ]
    rows = []
    helps: dict[str, list[tuple[float, str]]] = {
        r.attacker: [] for r in strongest(audit.found[THIS]) if r.learnt
    }
    for name in audit.variants:
        found = audit.found[name]
        reached = {r.attacker: r for r in strongest(found)}
        figures = [
            f"{r.figure} {r.found:.2f} ({r.guess:.2f})" if (r := reached.get(a)) else "no attack applies"
            for a in ATTACKERS
        ]
        gradients = found["model"]["privacy"]["gradients"]
        spends = gradients["mechanism"] == "skellam" and "composed" in gradients
        epsilon = f"{gradients['composed']['epsilon']:.3g}" if spends else "none"
        rmse = found["model"]["rmse"]
        change = None if rmse is None or base is None else rmse - base
        rows.append(
            [name, _format_rmse(rmse), "–" if change is None else f"{change:+.4f}", *figures, epsilon]
        )
        if change is not None:
            for attacker, ways in helps.items():
                if attacker not in reached or not reached[attacker].learnt:
                    ways.append((change, name))
    advice = [
        f"Against {ATTACKERS[attacker].title}: "
        + (f"**{min(ways)[1]}** (RMSE {min(ways)[0]:+.4f})." if ways else "none of these variants is enough.")
        for attacker, ways in helps.items()
    ]
    document.add(
        Heading("Safer settings and their cost"),
        Paragraph(
            "Each variant was trained and attacked on this run's data with one seed. The guess is in brackets."
        ),
        Paragraph(_describe_price(audit)),
        Table(header, rows),
        Paragraph("The cheapest change after which an attacker learns no more than a guess:")
        if advice
        else None,
        Points(advice) if advice else None,
        Points([f"`{name}`: {HOW[name]}" for name in others]),
    )


def _describe_price(audit: Audit) -> str:
    """Return which trainings the RMSE of the variants is of."""
    text = "The price is the RMSE of predicted ratings"
    if audit.is_sampled:
        whole = _format_rmse(audit.run.metrics["test"]["rmse"])
        sample = _format_rmse(audit.found[THIS]["model"]["rmse"])
        text += (
            f", of trainings on the sample described above. The settings of this run reach {sample} there; the run itself, on "
            f"all data, has {whole}"
        )
    return f"{text}. What a variant costs in lists (NDCG@20) was not measured."


HOW = {
    "noise": "`--set gradients.noise=0.25`: every party adds noise of a quarter of a column's root mean square.",
    "one model": "`--set model.raters=0`: only the first of the two models of ratings is trained.",
    "masks": "`--set masking=true`: the coordinator sees only sums; the model is bit-identical.",
    "no exchange": "`--set exchange=off`: only masked gradients leave a party.",
    "preset private": "`--preset private --epsilon 4`: differential privacy for every single rating over the whole training. "
    "It does not cover all ratings of a user together, which show whether the user is at other parties; a lower epsilon hides more.",
}


def _limits(document: Document, audit: Audit) -> None:
    run = audit.run
    document.add(
        Heading("Limits of this audit"),
        Points([
            "Attacks are lower bounds: a better one may exist. Only the guarantees hold against every attacker.",
            "The attackers are curious, not malicious. They open fake accounts, but send no false messages.",
            "The alignment of users before training is not attacked.",
            "There is one seed and one pair of attacker and target. Figures for other data sets are in `results/attacks.md`.",
        ]),
        Heading("Provenance"),
        Paragraph(f"verfedgnn {installed_version()}, configuration `{run.config.fingerprint()}`, seed {run.config.seed}, "
                  f"{audit.settings['rounds']:,} rounds, {audit.settings['victims']:,} victims; all findings are in "
                  "`findings.json` next to this page."),
    )  # fmt: skip


def _format_rmse(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"
