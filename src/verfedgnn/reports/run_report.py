"""The report of a run: what a data scientist sends on."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from verfedgnn.core.metrics import squared_errors
from verfedgnn.core.version import installed_version
from verfedgnn.evaluation.lift_plots import band, lift_figure
from verfedgnn.reports.document import Code, Document, Heading, Paragraph, Picture, Table
from verfedgnn.reports.drawing import as_svg, blank
from verfedgnn.reports.phrases import figure, size
from verfedgnn.reports.privacy_card import add_guarantees
from verfedgnn.runs.run import Run

WORST = 15
"""Test ratings that are shown as the worst predicted."""


def run_document(run: Run, name: str) -> Document:
    """Figures, curves, lift, bytes, guarantees, errors, settings."""
    metrics, document = run.metrics, Document(f"Run {name}")
    ratings = sum(len(party.ratings) for party in run.parties)
    names = ", ".join(party.name for party in run.parties)
    users = run.parties[0].ratings.n_users
    who = f"{len(run.parties)} parties ({names})" if len(run.parties) > 1 else names
    document.add(Paragraph(f"{who} with {users:,} common users and {ratings:,} ratings; preset `{run.config.base}`, "
                           f"{run.config.model.gnn.upper()}, seed {run.config.seed}."))  # fmt: skip
    _figures(document, metrics)
    _curve(document, run)
    _lift(document, metrics.get("lift"))
    _bytes(document, run)
    add_guarantees(document, metrics["privacy"])
    _errors(document, run)
    document.add(
        Heading("Configuration"),
        Code(run.config.to_toml()),
        Heading("Environment"),
        Paragraph(f"verfedgnn {installed_version()}, " + ", ".join(f"{k} {v}" for k, v in metrics["environment"].items())
                  + f"; configuration `{run.config.fingerprint()}`, public parameters `{metrics['public']}`."),
    )  # fmt: skip
    return document


def _figures(document: Document, metrics: dict[str, Any]) -> None:
    cost, names = metrics["bytes"], list(metrics["test"])
    rows = [
        [p["name"], f"{p['items']:,}", f"{p['ratings']:,}", *(figure(p["test"][n]) for n in names)]
        for p in metrics["parties"]
    ]
    document.add(
        Heading("How good it is"),
        Table(["party", "items", "ratings", *names], [*rows, ["**all**", "", "", *(figure(metrics["test"][n]) for n in names)]]),
        Paragraph(f"On the test part, which neither trained nor chose anything. {metrics['rounds']:,} rounds in "
                  f"{metrics['seconds']:.0f} s; the model of round {metrics['best_round']:,} was kept, by its error on the "
                  f"validation part. {size(cost['up'])} up and {size(cost['down'])} down, {size(cost['per_party_per_round'])} a "
                  "party and round."),
    )  # fmt: skip


def _curve(document: Document, run: Run) -> None:
    name = next((key for key in (run.history[0] if run.history else {}) if key.startswith("valid_")), None)
    drawing = blank(10, 3.6) if name else None
    if drawing is None or name is None:
        return
    left, right = drawing.subplots(1, 2, sharey=True)
    errors = [entry[name] for entry in run.history]
    left.plot([entry["round"] for entry in run.history], errors, color="#2a6fb0")
    left.axvline(run.metrics["best_round"], color="#9e9e9e", linewidth=0.8, linestyle="--")
    left.set(
        xlabel="round (dashed: kept)",
        ylabel=name.replace("valid_", "validation ").upper().replace("VALIDATION", "validation"),
    )
    right.plot([entry["bytes"] / 1e6 for entry in run.history], errors, color="#2a6fb0")
    right.set(xlabel="MB in all")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    document.add(Picture("curve", "The error on the validation part by round and by bytes", as_svg(drawing)))


def _lift(document: Document, lift: dict[str, Any] | None) -> None:
    if lift is None:
        return
    ways = ("biases", "alone", "federated", "pooled")

    def row(name: str, part: dict[str, Any]) -> list[str]:
        gain = part.get("gain")
        text = f"{gain['rmse']:+.4f} ({gain['low']:+.4f} to {gain['high']:+.4f})" if gain else "–"
        return [name, *(figure(part[way]) for way in ways), text, part.get("pays", "–")]

    header = [*ways, "gain (95 % interval)", "pays"]
    drawing = lift_figure(lift)
    document.add(
        Heading("Does joining pay?"),
        Paragraph("Test RMSE with user and item means, alone, federated, and with all data in one place. The gain is what "
                  "federated is below the better of means and alone."),
        Table(["party", *header], [*(row(p["name"], p) for p in lift["parties"]), row("**all**", lift["overall"])]),
        Table(["a user's own ratings", *header], [row(band(r), r) for r in lift.get("by_own_ratings", [])]),
        Picture("lift", "What joining changes, by a user's own ratings and by party", as_svg(drawing)) if drawing else None,
    )  # fmt: skip


MESSAGES = {
    "Hello": "joining",
    "Welcome": "a full copy for who joins",
    "RoundStart": "sums of the last round, and what to do",
    "RoundReply": "protected shares of rounds",
    "Finish": "the best model's public part",
    "Finished": "confirmations",
    "Waiting": "who is still missing",
    "Refused": "refusals",
}
"""Messages in words; the names are those of docs/protocol.md."""


def bytes_by_kind(run: Run) -> list[tuple[str, str, int, int]]:
    """What was sent, in words: what, which way, messages, bytes; the most first."""
    totals: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for (kind, way, _), amount in run.ledger.bytes.items():
        totals[kind, way][0] += amount
    for (kind, way, _), count in run.ledger.messages.items():
        totals[kind, way][1] += count
    words = {"up": "to the coordinator", "down": "to parties"}
    rows = [
        (MESSAGES.get(kind, kind), words[way], count, amount)
        for (kind, way), (amount, count) in totals.items()
    ]
    return sorted(rows, key=lambda row: -row[3])


def _bytes(document: Document, run: Run) -> None:
    kinds = bytes_by_kind(run)
    whole = sum(amount for *_, amount in kinds) or 1
    rows = [
        [kind, way, f"{count:,}", size(amount), f"{amount / whole:.1%}"] for kind, way, count, amount in kinds
    ]
    document.add(Heading("What it cost"), Table(["message", "way", "messages", "bytes", "share"], rows))


def _errors(document: Document, run: Run) -> None:
    if run.config.training.ranks:
        return
    found: list[tuple[float, list[str]]] = []
    for prepared, model in zip(run.prepared(), run.models, strict=True):
        table, test = prepared.party.ratings, prepared.test
        wrong = squared_errors(model.users, model.items, test)
        for place in wrong.topk(min(WORST, len(wrong))).indices.tolist():
            user, item, rating = int(test.user[place]), int(test.item[place]), float(test.rating[place])
            title = str(table.titles[item]) if table.titles is not None else ""
            predicted = float(model.users[user] @ model.items[item])
            cells = [
                prepared.party.name,
                str(table.user_ids[user]),
                title or str(table.item_ids[item]),
                f"{rating:g}",
                f"{predicted:.2f}",
            ]
            found.append((float(wrong[place]), cells))
    worst = [cells for _, cells in sorted(found, key=lambda pair: -pair[0])[:WORST]]
    document.add(
        Heading("Where it is most wrong"),
        Paragraph(
            "The test ratings with the largest errors. It names users and items: keep this page where the ratings may be."
        ),
        Table(["party", "user", "item", "rating", "predicted"], worst),
    )
