"""The paper's large case (App. I.3) in the shape of Yelp: the cost of a round for a party and the
coordinator, and its bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from verfedgnn.data.synthetic_shapes import LIKE
from verfedgnn.reports.document import Block, Paragraph, Table
from verfedgnn.research.bench.bench_suite import BenchScope, Figures, Question, Task
from verfedgnn.research.bench.two_process import memory

PAPER = "660.9 MB a party and round, 18 s client and 5 s server an epoch on 16 cores"


def tasks(scope: BenchScope) -> list[Task]:
    """Return tasks with all users in a round, with 32-bit and 16-bit numbers, and with one twentieth of
    the users.
    """
    shape = LIKE["yelp"]
    down = scope.pick(1, 100)
    sizes = {"users": shape.users // down, "items": shape.items // down, "ratings": shape.ratings // down}
    return [
        Task("yelp", "two_process:measure", {**sizes, "floor": True}, needs=memory(sizes["users"])),
        Task("yelp-half", "two_process:measure", {**sizes, "bits": 16}, needs=memory(sizes["users"])),
        # The sums of a part are known from the second pass on, so bytes are counted from then.
        Task(
            "yelp-twentieth",
            "two_process:measure",
            {**sizes, "user_blocks": 20, "warm": 21, "rounds": 20},
            needs=memory(sizes["users"]),
        ),
    ]


def answer(found: Mapping[str, Figures], folder: str) -> Sequence[Block | None]:
    """Return a table with one case per row."""
    rows = []
    for name, title in (
        ("yelp", "all users"),
        ("yelp-half", "all users, neighbourhoods in 16 bits"),
        ("yelp-twentieth", "1/20 of the users a round"),
    ):
        if name not in found:
            continue
        figures = found[name]
        party = figures["party"]
        coordinator = figures["coordinator"]
        sent = figures["bytes"]
        rows.append(
            [
                title,
                f"{party['cpu']:.1f}{_kernel(party)} / {party['wall']:.1f}",
                f"{party['memory'] / 1e9:.2f}",
                f"{coordinator['cpu']:.1f} / {coordinator['wall']:.1f}",
                f"{coordinator['memory'] / 1e9:.2f}",
                f"{sent['per_party_per_round'] / 1e6:.1f}",
                f"{sent['down'] / 1e6:.1f} + {sent['up'] / 1e6:.1f}",
            ]
        )
    if not rows:
        return []
    header = [
        "a round over",
        "party, CPU / wall s",
        "its memory, GB",
        "coordinator, CPU / wall s",
        "its memory, GB",
        "MB a party and round",
        "down + up",
    ]
    size = next(iter(found.values()))["users"]
    blocks: list[Block | None] = [
        Table(header, rows),
        Paragraph(
            f"{size:,} users, synthetic data with Yelp's density and tails, GCN, D = 20, K = 2, q = N/5 in "
            "blocks of 256, ten parties, half of them active, all ratings in a round. Seconds are medians over rounds in which "
            "the party is active (the kernel's share in brackets). Bytes are averages over all rounds and parties; an active "
            "party sends twice as many. 16-bit numbers are within 2^-11 of 32-bit ones. Memory is the peak above what Python "
            "and the libraries take (0.3 GB). The party and the coordinator have their own processes; the other nine parties "
            "are simulated. A round over 1/20 of the users sends only their rows, but propagation still covers all of a "
            "party's ratings. "
            f"The paper reports {PAPER}."
        ),
    ]
    if "yelp" in found and "floor" in found["yelp"]["party"]:
        party = found["yelp"]["party"]
        blocks.append(
            Paragraph(
                f"A party's round takes **{party['cpu'] / party['floor']['cpu']:.1f} times** its bare products "
                f"({party['floor']['cpu']:.2f} s)."
            )
        )
    return blocks


def _kernel(party: Figures) -> str:
    return f" ({party['system']:.1f})" if "system" in party else ""


QUESTION = Question("yelp", "Two million users", tasks, answer)
