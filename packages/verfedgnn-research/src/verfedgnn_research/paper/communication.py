r"""Figure 5: bits per round against the number of users and against N/q, with and without quantization,
from the ledger.

Beside them an accounting under which both of the paper's savings come out, for one party, in numbers of s
bits:

.. math::
    \underbrace{N D + K D^2}_{\text{parameters down}} + \underbrace{K q D}_{\text{neighbourhoods}}
    + \underbrace{\gamma (N D + K D^2)}_{\text{gradients up}}, \qquad \gamma = 1 \text{ without quantization}

in which a neighbourhood counts once, however many parties receive it. Sec. 5.3 counts it once per recipient,
and parameters K times; with that neither saving comes out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verfedgnn_research.experiments.training_cell import Cell
from verfedgnn_research.paper.paper_experiment import (
    PARTIES,
    TITLES,
    CellResults,
    Experiment,
    PaperScope,
    write_table,
)
from verfedgnn_research.paper.paper_pictures import draw_communication
from verfedgnn_research.paper.published import PROJECTION_SAVES, QUANTIZATION_SAVES

USERS = (1000, 2000, 3000, 4000, 5000, 6000)
RATIOS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0, 50.0, 100.0)
STANDARD = 5.0
SHORT = 2
LONG = 12
"""Rounds of two trainings whose difference is the cost of a round. The very first round sends no sums yet."""
QUANTIZED_BITS = 5.2
"""Bits of a quantized coordinate in the accounting above, solved from the paper's 50.6 %."""
OPEN = {"gradients.mechanism": "none", "gradients.clip": None}


def formula(ratio: float | None, quantized: bool, users: int = 6040, dim: int = 6, layers: int = 2) -> float:
    """Return the bits per round by the accounting above; without a ratio, X itself is sent."""
    public = users * dim + layers * dim * dim
    gradients = public * (QUANTIZED_BITS / 32 if quantized else 1.0)
    rows = users if ratio is None else users / ratio
    return 32 * (public + layers * rows * dim + gradients)


def _data(scope: PaperScope) -> str:
    return scope.data[0]


def _settings(ratio: float | None, quantized: bool, participation: float = 1.0) -> dict[str, Any]:
    chosen: dict[str, Any] = {"exchange": ratio or 0}
    if ratio is None or ratio < 2:
        chosen["unprotected"] = "projection"
    if participation < 1:
        chosen["training.participation"] = participation
    return chosen | ({} if quantized else OPEN) | {"training.batch": 0, "training.evaluate_every": 1000}


def _pair(scope: PaperScope, settings: Mapping[str, Any], users: int | None = None) -> list[Cell]:
    """Return two short trainings on all ratings; the bytes of a round do not depend on its batch."""
    return [
        Cell(
            (_data(scope),),
            "verfedgnn",
            "gcn",
            0,
            PARTIES,
            tuple(sorted({**settings, "training.epochs": n}.items())),
            users,
        )
        for n in (SHORT, LONG)
    ]


def _users(scope: PaperScope) -> tuple[int, ...]:
    return (200, 500, 900) if scope.coarse else USERS


def _wanted(scope: PaperScope) -> dict[tuple[Any, ...], list[Cell]]:
    wanted: dict[tuple[Any, ...], list[Cell]] = {}
    for quantized in (True, False):
        for ratio in (None, *scope.points(RATIOS, STANDARD)):
            wanted["ratio", ratio, quantized] = _pair(scope, _settings(ratio, quantized))
        for users in _users(scope):
            for rate in (1.0, 0.5):
                wanted["users", users, quantized, rate] = _pair(
                    scope, _settings(STANDARD, quantized, rate), users
                )
    return wanted


def cells(scope: PaperScope) -> list[Cell]:
    """Return all short trainings."""
    return [cell for pair in _wanted(scope).values() for cell in pair]


def write(records: CellResults, scope: PaperScope, folder: Path) -> str:
    """Write the figure and return its page: bits per party and round by users and by N/q, and the paper's
    three claims.
    """
    wanted = _wanted(scope)
    if any(cell not in records for pair in wanted.values() for cell in pair):
        return "Not all of its short trainings are finished.\n"
    bits = {key: _steady(records, pair) for key, pair in wanted.items()}
    ratios = sorted({key[1] for key in bits if key[0] == "ratio" and key[1] is not None})
    header = [
        "N/q",
        "ternary, bits",
        "not quantized, bits",
        "quantization saves",
        "projection saves (ternary)",
        "an accounting that fits the paper",
    ]
    rows = []
    none = bits["ratio", None, True]
    for ratio in ratios:
        with_ = bits["ratio", ratio, True]
        without = bits["ratio", ratio, False]
        paper = f"{1 - formula(ratio, True) / formula(ratio, False):.1%}, {1 - formula(ratio, True) / formula(None, True):.1%}"
        rows.append(
            [
                f"{ratio:g}",
                f"{with_:,.0f}",
                f"{without:,.0f}",
                f"{1 - with_ / without:.1%}",
                f"{1 - with_ / none:.1%}",
                paper,
            ]
        )
    table = write_table(folder, "figure5", header, rows)
    users_header = [
        "users",
        "ternary, α = 1",
        "ternary, α = 0.5",
        "not quantized, α = 1",
        "not quantized, α = 0.5",
    ]
    by_users = [
        [
            f"{n:,}",
            *(
                f"{bits['users', n, quantized, rate]:,.0f}"
                for quantized in (True, False)
                for rate in (1.0, 0.5)
            ),
        ]
        for n in _users(scope)
    ]
    users_table = write_table(folder, "figure5-users", users_header, by_users)
    draw_communication(bits, _users(scope), ratios, folder)
    picture = "![Communication by users and by N/q](figure5.svg)\n\n"
    smallest = min(1 - bits["ratio", r, True] / bits["ratio", r, False] for r in ratios if r >= 4)
    saved = 1 - bits["ratio", STANDARD, True] / none
    users = _users(scope)
    grown = bits["users", users[-1], True, 1.0] / bits["users", users[0], True, 1.0]
    halved = {q: [bits["users", n, q, 0.5] / bits["users", n, q, 1.0] for n in users] for q in (True, False)}
    half, open_half = (f"{min(halved[q]):.0%} to {max(halved[q]):.0%}" for q in (True, False))
    return (
        f"{picture}Bits of a steady round, of one of ten parties, both directions, every header included "
        f"({TITLES[_data(scope)]}, GCN): the ledger of trainings of {LONG} and of {SHORT} rounds, their difference divided by "
        f"{LONG - SHORT}.\n\n{table}\n"
        "*an accounting that fits the paper*: what quantization and what the projection save if parameters go down as floats, a "
        f"neighbourhood counts once, and a quantized coordinate costs {QUANTIZED_BITS} bits, which is what the paper's "
        f"{PROJECTION_SAVES:.1%} amount to.\n\n"
        f"{users_table}\n"
        f"- q = N/5 saves {saved:.1%} with quantized gradients (the paper: {PROJECTION_SAVES:.1%}): "
        f"{'more' if saved > PROJECTION_SAVES else 'less'}, since sums of ternary gradients go down here, not parameters.\n"
        f"- Quantization saves at least {smallest:.1%} for N/q >= 4 (the paper: over {QUANTIZATION_SAVES:.0%}): "
        f"{'confirmed' if smallest > QUANTIZATION_SAVES else '**not confirmed**'}.\n"
        f"- The paper: nearly proportional to users and to α. Here {users[-1] / users[0]:g} times the users cost {grown:.1f} "
        f"times the bits; half of the parties, {half} of what all cost (not quantized, {open_half}: missed updates are sent "
        "later).\n"
    )


def _steady(records: CellResults, pair: list[Cell]) -> float:
    """Return the bits that a round costs a party, on average over all parties."""
    short, long = (records[cell] for cell in pair)
    sizes = [record["bytes"]["per_party_per_round"] * record["rounds"] for record in (short, long)]
    return float(8 * (sizes[1] - sizes[0]) / (LONG - SHORT))


EXPERIMENT = Experiment(
    "figure5", "Figure 5: communication cost by user size and dimension for GCN", cells, write
)
