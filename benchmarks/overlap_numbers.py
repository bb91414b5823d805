"""Measure what partial overlap of users means for lift and for the cost of a round.
Writes results/overlap/.

    .venv/bin/python benchmarks/overlap_numbers.py lift     # 12 trainings with lift; finished ones are kept
    .venv/bin/python benchmarks/overlap_numbers.py cost     # rounds of four large parties; finished ones are kept
    .venv/bin/python benchmarks/overlap_numbers.py million  # the same with a million users, also without masks
    .venv/bin/python benchmarks/overlap_numbers.py page     # fill in the tables of results/overlap.md, draw the picture

A party has the same number of users, items and ratings at every overlap; only who else knows its users changes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import mean
from typing import Any, TypeVar

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch

from verfedgnn.config import Config
from verfedgnn.core.pairs import Pairs, PartyInput
from verfedgnn.core.process_memory import keep_freed_memory
from verfedgnn.core.random_streams import simulated_secret
from verfedgnn.data import read_parties
from verfedgnn.data.parties import parties_from_tables
from verfedgnn.data.synthetic import synthetic_tables, write_tables
from verfedgnn.evaluation.bootstrap import FEWEST_USERS
from verfedgnn.evaluation.lift import lift
from verfedgnn.protocol.coordinator.coordinator import Coordinator
from verfedgnn.protocol.party.candidate import Candidate
from verfedgnn.protocol.party.party import Party
from verfedgnn.protocol.party.policy import Policy
from verfedgnn.protocol.wire.messages import Hello, Message, RoundStart, TripShares, Welcome, decode, encode
from verfedgnn.research.bench.measure import machine, medians, peak_memory, timed
from verfedgnn.research.experiments.result_tables import markdown
from verfedgnn.research.experiments.training_cell import commit
from verfedgnn.runs.ledger import Ledger
from verfedgnn.runs.prepared_data import prepare
from verfedgnn.training.train import train

FOLDER = Path(__file__).resolve().parent.parent / "results" / "overlap"
PAGE = FOLDER.with_suffix(".md")
OVERLAPS = (5, 20, 50, 100)
"""Percent of a party's users who are at every party."""
SEEDS = (0, 1, 2)
SMALL = {"users": 400, "items": 100, "ratings": 6_000}
"""Size of each of the three parties whose lift is measured."""
EPOCHS = 200

UNION = 200_000
"""Users in the union of the four parties whose rounds are measured, at 10 % overlap."""
MILLION = 1_000_000
"""The larger union."""
LARGE_PARTIES = 4
COST_OVERLAPS = (10, 100)
ITEMS = 2_000
RATINGS_PER_USER = 5
WARM_ROUNDS = 5
"""Fewest rounds before the first measured one. With user blocks, every block has a turn first."""
USER_BLOCKS = (1, 20)

Result = TypeVar("Result")

TABLES = {
    "ratings, known customers": (),
    "ratings, newcomers": ("newcomers",),
    "lists, known customers": ("lists",),
    "lists, newcomers": ("lists", "newcomers"),
}
"""Path of each table in the lift of metrics.json."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=("lift", "cost", "million", "page"))
    parser.add_argument("--seeds", nargs="*", type=int, default=SEEDS)
    parser.add_argument("--overlap", nargs="*", type=int, help="in percent")
    options = parser.parse_args()
    torch.set_num_threads(1)
    FOLDER.mkdir(parents=True, exist_ok=True)
    if options.step == "lift":
        for seed in options.seeds:
            for overlap in options.overlap or OVERLAPS:
                keep(f"lift-{overlap}-{seed}", lambda: measure_lift(overlap, seed))  # noqa: B023
    elif options.step == "cost":
        for overlap in options.overlap or COST_OVERLAPS:
            for blocks in USER_BLOCKS:
                keep(f"cost-{overlap}-{blocks}", lambda: measure_cost(overlap, blocks))  # noqa: B023
    elif options.step == "million":
        for masked in (True, False):
            for blocks in USER_BLOCKS:
                measure = partial(measure_cost, 10, blocks, MILLION, masked=masked)
                keep(million_file(blocks, masked).stem, measure)
    else:
        write_page()


def keep(name: str, measure: Any) -> None:
    """Write the figures of one measurement, unless they exist."""
    path = FOLDER / f"{name}.json"
    if not path.exists():
        wall = time.perf_counter()
        cpu = time.process_time()
        found = measure()
        took = {
            "wall": round(time.perf_counter() - wall, 1),
            "cpu": round(time.process_time() - cpu, 1),
        }
        path.write_text(
            json.dumps({**found, "took": took, "machine": machine(), "commit": commit()}, indent=1) + "\n"
        )
        print(name, took, flush=True)


def measure_lift(overlap: int, seed: int) -> dict[str, Any]:
    """Train three parties with preset best and return their lift, as the two commands in the result do."""
    with tempfile.TemporaryDirectory() as folder:
        write_tables(synthetic_tables(3, overlap / 100, seed=seed, **SMALL), Path(folder))
        parties = read_parties(folder, seed=seed)
    run = train(parties, Config.preset("best", seed=seed, epochs=EPOCHS))
    sizes = " ".join(f"--{name} {size}" for name, size in SMALL.items())
    return {
        "commands": [
            f"verfedgnn data synth --overlap {overlap / 100:g} --parties 3 {sizes} --seed {seed} --out shops/",
            f"verfedgnn train --data shops/ --preset best --set epochs={EPOCHS} --seed {seed} --lift",
        ],
        "overlap": overlap,
        "seed": seed,
        "users": parties[0].ratings.n_users,
        "gates": [
            {"party": row["name"], "ratings": row["gate"], "lists": row["list_gate"]}
            for row in run.metrics["parties"]
        ],
        "lift": lift(run),
    }


def users_per_party(union: int) -> int:
    """Return the users of each large party, so that there are `union` users in all at 10 % overlap."""
    return round(union / (0.1 + 0.9 * LARGE_PARTIES))


def exchange_cycle(config: Config) -> int:
    """Return the rounds from one exchange of all users to the next: fewer rounds would over- or undercount bytes."""
    return config.exchange.every * config.training.user_blocks


def measure_cost(
    overlap: int, user_blocks: int, union: int = UNION, *, masked: bool = True
) -> dict[str, Any]:
    """Return bytes, seconds and memory of rounds; the first party is a process of its own, with masks drawn.

    Without masks, the same neighbourhoods travel as plain integers.
    """
    config = Config.preset(
        "best", raters=0, epochs=10**6, evaluate_every=10**6, patience=0, user_blocks=user_blocks, lists=False
    )
    if not masked:
        config = config.with_values({"masking": False, "exchange.mode": "exact"})
    users = users_per_party(union)
    tables = synthetic_tables(
        LARGE_PARTIES, overlap / 100, users=users, items=ITEMS, ratings=RATINGS_PER_USER * users
    )
    parties = parties_from_tables(tables)
    all_users = parties[0].ratings.n_users
    inputs = [each.input for each in prepare(parties, config, torch.device("cpu"))]
    ratings = [len(each.train) for each in inputs]
    context = get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=answer_rounds, args=(there,), daemon=True)
    process.start()
    there.close()
    with tempfile.TemporaryDirectory() as folder:
        here.send((store(inputs[0], Path(folder)), config))
        ledger, coordinator_times = coordinate(here, inputs, config)
    here.send(None)
    figures = here.recv()
    here.close()
    process.join(30)
    rounds = exchange_cycle(config)
    share = LARGE_PARTIES * rounds
    return {
        "overlap": overlap,
        "user_blocks": user_blocks,
        "parties": LARGE_PARTIES,
        "users_per_party": users,
        "union": all_users,
        "masked": masked,
        "items_per_party": ITEMS,
        "training_ratings_per_party": ratings,
        "rounds": rounds,
        "bytes": {way: ledger.total(way) / share for way in ("up", "down")},
        "party": figures,
        "coordinator": coordinator_times,
    }


def coordinate(link: Connection, inputs: list[PartyInput], config: Config) -> tuple[Ledger, dict[str, float]]:
    """Run the rounds with the first party at the other end of `link` and the others here."""
    names = [data.name for data in inputs]
    coordinator = Coordinator(config, names, masked=True)
    candidates = {
        data.name: Candidate(data, config, simulated_secret(config.seed, index), policy=Policy())
        for index, data in enumerate(inputs)
        if index
    }
    hellos = [link.recv(), *(encode(candidate.hello()) for candidate in candidates.values())]
    for hello in map(decode, hellos):
        assert isinstance(hello, Hello)
        coordinator.hello(hello)
    members: dict[str, Party] = {}
    for name in names:
        welcome = coordinator.welcome(name)
        if name not in candidates:
            link.send(encode(welcome))
        else:
            shared = next(iter(members.values())).replica if members else None
            members[name] = candidates[name].welcome(welcome, shared)
    rounds = Rounds(link, coordinator, members)
    times = []
    warm = max(WARM_ROUNDS, config.training.user_blocks)
    for number in range(warm + exchange_cycle(config)):
        if number == warm:
            rounds.ledger = Ledger()
            link.send(b"count")
        times.append(rounds.run())
    return rounds.ledger, medians(times[warm:])


class Rounds:
    """Rounds of a coordinator with parties here and one party at the other end of `link`."""

    def __init__(self, link: Connection, coordinator: Coordinator, members: dict[str, Party]) -> None:
        self.link = link
        self.coordinator = coordinator
        self.members = members
        self.ledger = Ledger()
        self.spent = dict[str, float]()

    def run(self) -> dict[str, float]:
        """Run one round, with the exchange of shares if sums are masked; return the coordinator's seconds."""
        coordinator = self.coordinator
        self.link.send(b"round")
        self.spent = {"cpu": 0.0, "wall": 0.0}
        starts = self.time(coordinator.open)
        if coordinator.masks is not None:
            self.exchange(self.time(coordinator.share_requests).items())
            shares = self.time(coordinator.proceed)
            self.exchange(each for each in shares if isinstance(each[1], TripShares))
        self.exchange(starts.items())
        if coordinator.masks is not None:
            self.exchange(self.time(coordinator.proceed))
        self.time(coordinator.close)
        return self.spent

    def exchange(self, messages: Iterable[tuple[str, Message]]) -> None:
        """Carry messages to parties, and their answers to the coordinator."""
        for name, message in messages:
            data = encode(message)
            self.ledger.record(type(message).__name__, "down", name, len(data))
            if name in self.members:
                answers = answer(self.members[name], data)
            else:
                self.link.send(data)
                answers = self.link.recv()
            for received in answers:
                reply = decode(received)
                self.ledger.record(type(reply).__name__, "up", name, len(received))
                self.time(partial(self.coordinator.take, name, reply))

    def time(self, action: Callable[[], Result]) -> Result:
        """Call the coordinator and add the seconds that it takes."""
        results: list[Result] = []
        took = timed(lambda: results.append(action()))
        self.spent = {key: self.spent[key] + took[key] for key in self.spent}
        return results.pop()


def answer(member: Party, data: bytes) -> list[bytes]:
    """Return a party's answers to a message. With masks, a survivor list is also answered with shares for the next round."""
    message = decode(data)
    answers = [member.handle(message)]
    if member.masks is not None and not isinstance(message, RoundStart):
        answers.append(member.masks.shares_ahead())
    return [encode(each) for each in answers if each is not None]


def answer_rounds(link: Connection) -> None:
    """Run the first party in a process of its own: join, answer rounds, and send its seconds and memory."""
    keep_freed_memory()
    torch.set_num_threads(1)
    file, config = link.recv()
    base = peak_memory()
    candidate = Candidate(restore(file), config, simulated_secret(config.seed, 0), policy=Policy())
    link.send(encode(candidate.hello()))
    welcome = decode(link.recv())
    assert isinstance(welcome, Welcome)
    member = candidate.welcome(welcome)
    times: list[dict[str, float]] = []
    while (message := link.recv()) is not None:
        if message == b"count":
            times = []
            continue
        if message == b"round":
            times.append({"cpu": 0.0, "wall": 0.0})
            continue
        replies: list[bytes] = []
        spent = timed(lambda: replies.extend(answer(member, message)))  # noqa: B023
        times[-1] = {key: times[-1][key] + spent[key] for key in times[-1]}
        link.send(replies)
    cpu = [each["cpu"] for each in times]
    link.send(
        {
            "cpu_mean": mean(cpu),
            "cpu_highest": max(cpu),
            "wall_mean": mean(each["wall"] for each in times),
            "memory": peak_memory() - base,
            "memory_before": base,
        }
    )


def store(data: PartyInput, folder: Path) -> Path:
    """Write a party's input to a file."""
    file = folder / "party.npz"
    parts = {
        f"{part}_{field}": getattr(pairs, field).numpy()
        for part, pairs in (("train", data.train), ("valid", data.valid))
        for field in ("user", "item", "rating")
    }
    np.savez(file, name=data.name, users=data.users, items=data.items, scale=np.array(data.scale), **parts)
    return file


def restore(file: Path) -> PartyInput:
    """Read the input that `store` wrote."""
    with np.load(file) as found:
        train_pairs, valid_pairs = (
            Pairs(*(torch.from_numpy(found[f"{part}_{field}"]) for field in ("user", "item", "rating")))
            for part in ("train", "valid")
        )
        low, high = found["scale"].tolist()
        return PartyInput(
            str(found["name"]),
            int(found["users"]),
            int(found["items"]),
            (low, high),
            train_pairs,
            valid_pairs,
        )


def rows_of(found: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """Return one table of a lift."""
    for name in path:
        found = found[name]
    return found


def read_lifts() -> dict[int, list[dict[str, Any]]]:
    """Return the finished results of all seeds, by overlap."""
    files = {o: [FOLDER / f"lift-{o}-{s}.json" for s in SEEDS] for o in OVERLAPS}
    found = {o: [json.loads(f.read_text()) for f in each if f.exists()] for o, each in files.items()}
    return {overlap: results for overlap, results in found.items() if results}


def signed(percent: float) -> str:
    """Return a percentage with its sign, and zero without a minus."""
    return f"{round(percent, 1) + 0.0:+.1f}"


def write_page() -> None:
    """Fill in the tables of the page and draw the picture."""
    lifts = read_lifts()
    parts = {
        "lift": "\n".join(
            f"### {title.capitalize()}\n{markdown(LIFT_HEADER, list(lift_rows(lifts, path)))}"
            for title, path in TABLES.items()
        ),
        "presence": markdown(PRESENCE_HEADER, list(presence_rows(lifts))),
        "worse": markdown(["", *(f"{overlap} %" for overlap in lifts)], list(worse_rows(lifts))),
        "cost": markdown(COST_HEADER, list(cost_rows())),
        "million": markdown(MILLION_HEADER, list(million_rows())),
    }
    text = PAGE.read_text()
    for name, part in parts.items():
        before, rest = text.split(f"<!-- begin {name} -->")
        _, after = rest.split(f"<!-- end {name} -->")
        text = f"{before}<!-- begin {name} -->\n{part}<!-- end {name} -->{after}"
    PAGE.write_text(text)
    draw(lifts, FOLDER / "lift-by-overlap.png")


LIFT_HEADER = [
    "overlap",
    "customers",
    "simple",
    "alone",
    "federated",
    "gain",
    "pays, by seed",
]
PRESENCE_HEADER = [
    "overlap",
    "ratings, at this party only",
    "ratings, at all parties",
    "lists, at this party only",
    "lists, at all parties",
]
COST_HEADER = [
    "overlap",
    "users in the union",
    "user blocks",
    "MB up",
    "MB down",
    "MB a party and round",
    "bytes per row of the union",
    "party, CPU s a round",
    "its memory, MB",
]


MILLION_HEADER = [
    "masks",
    "user blocks",
    "MB up",
    "MB down",
    "MB a party and round",
    "party, CPU s a round",
    "its memory, MB",
    "coordinator, CPU s a round",
]


def lift_rows(lifts: dict[int, list[dict[str, Any]]], path: tuple[str, ...]) -> Iterator[list[str]]:
    """Yield one row for each overlap: means over seeds, and the gain of the lowest and highest seed."""
    for overlap, results in lifts.items():
        rows = [rows_of(result["lift"], path)["overall"] for result in results]
        gains = [row["gain"]["percent"] for row in rows]
        yield [
            f"{overlap} %",
            " ".join(str(row["users"]) for row in rows),
            *(f"{mean(row[way] for row in rows):.4f}" for way in ("simple", "alone", "federated")),
            f"{signed(mean(gains))} % ({signed(min(gains))} to {signed(max(gains))})",
            ", ".join(row["pays"] for row in rows),
        ]


def presence_rows(lifts: dict[int, list[dict[str, Any]]]) -> Iterator[list[str]]:
    """Yield the gain of known customers at one party only and at all parties."""
    for overlap, results in lifts.items():
        cells = []
        for path in ((), ("lists",)):
            for others in (0, 2):
                rows = [
                    row
                    for result in results
                    for row in rows_of(result["lift"], path)["by_other_parties"]
                    if row["other_parties"] == others
                ]
                gain = signed(mean(row["gain"]["percent"] for row in rows)) if rows else ""
                cells.append(f"{gain} % ({sum(row['users'] for row in rows)})" if rows else "-")
        yield [f"{overlap} %", *cells]


def worse_rows(lifts: dict[int, list[dict[str, Any]]]) -> Iterator[list[str]]:
    """Yield, for each table, the parties that lose beyond their interval, and the lowest gain of any party."""
    for title, path in TABLES.items():
        cells = []
        for results in lifts.values():
            parties = [row for result in results for row in rows_of(result["lift"], path)["parties"]]
            gains = [row["gain"] for row in parties if row["users"] >= FEWEST_USERS]
            if gains:
                worse = sum(gain["high"] < 0 for gain in gains)
                lowest = min(gains, key=lambda gain: gain["percent"])
                interval = f"{signed(lowest['percent'])} % ±{lowest['margin_percent']:.1f}"
                cells.append(f"{worse} of {len(gains)} (lowest {interval})")
            else:
                cells.append("-")
        yield [title, *cells]


def cost_rows() -> Iterator[list[str]]:
    """Yield one row for each measurement of cost that exists."""
    for overlap in COST_OVERLAPS:
        for blocks in USER_BLOCKS:
            path = FOLDER / f"cost-{overlap}-{blocks}.json"
            if path.exists():
                found = json.loads(path.read_text())
                sent = found["bytes"]
                total = sent["up"] + sent["down"]
                yield [
                    f"{overlap} %",
                    f"{found['union']:,}",
                    str(blocks),
                    f"{sent['up'] / 1e6:.2f}",
                    f"{sent['down'] / 1e6:.2f}",
                    f"{total / 1e6:.2f}",
                    f"{total / found['union']:.1f}",
                    f"{found['party']['cpu_mean']:.2f}",
                    f"{found['party']['memory'] / 1e6:,.0f}",
                ]


def million_rows() -> Iterator[list[str]]:
    """Yield one row for each measurement with a million users."""
    for masked in (True, False):
        for blocks in USER_BLOCKS:
            found = json.loads(million_file(blocks, masked).read_text())
            sent = found["bytes"]
            yield [
                "yes" if masked else "no",
                str(blocks),
                *(f"{size / 1e6:.2f}" for size in (sent["up"], sent["down"], sum(sent.values()))),
                f"{found['party']['cpu_mean']:.2f}",
                f"{found['party']['memory'] / 1e6:,.0f}",
                f"{found['coordinator']['cpu']:.2f}",
            ]


def million_file(blocks: int, masked: bool) -> Path:
    """Return the file of a measurement with a million users."""
    return FOLDER / f"million-{blocks}-{'masked' if masked else 'plain'}.json"


def draw(lifts: dict[int, list[dict[str, Any]]], path: Path) -> None:
    """Draw the gain against the overlap: a dot for each seed, a line through their means."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for axis, kind in zip(axes, ("ratings", "lists"), strict=True):
        for (title, table), colour, shift in zip(
            ((t, p) for t, p in TABLES.items() if t.startswith(kind)),
            ("tab:blue", "tab:orange"),
            (-0.06, 0.06),
            strict=True,
        ):
            gains = [
                [rows_of(r["lift"], table)["overall"]["gain"] for r in results] for results in lifts.values()
            ]
            places = np.arange(len(gains)) + shift
            axis.plot(
                places,
                [mean(g["percent"] for g in row) for row in gains],
                color=colour,
                label=title.split(", ")[1],
            )
            for place, row in zip(places, gains, strict=True):
                for offset, gain in zip((-0.03, 0, 0.03), row, strict=False):
                    axis.errorbar(
                        place + offset,
                        gain["percent"],
                        yerr=gain["margin_percent"],
                        fmt="o",
                        markersize=3,
                        linewidth=0.8,
                        color=colour,
                        alpha=0.7,
                    )
        axis.axhline(0, color="grey", linewidth=0.8)
        axis.set_xticks(range(len(lifts)), [f"{overlap} %" for overlap in lifts])
        axis.set_xlabel("users of a party who are at every party")
        axis.set_title("Predicted ratings (RMSE)" if kind == "ratings" else "Lists (NDCG@20)", fontsize=10)
        axis.legend(frameon=False, fontsize=9, loc="upper left" if kind == "ratings" else "lower left")
    axes[0].set_ylabel("gain by joining, %")
    figure.savefig(path, dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    main()
