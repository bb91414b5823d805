"""What a round costs, as ratios measured in one run: against its bare products, and against the straightforward version.

    VERFEDGNN_DATA=... .venv/bin/python benchmarks/round_cost.py [--data ml-1m] [--rounds 30] [--write]

floor            the sparse and dense products of a round alone: neighbour sums and their transposes, W products forward and
                 backward, Phi and its transpose; nothing is rescaled, activated, quantized, encoded or stepped
straightforward  adjacency as a dense matrix per party, Phi applied for every pair of parties, one party after the other
Medians over rounds; the three are measured alternately, so that a busy machine troubles all of them.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from verfedgnn import Config, read_parties
from verfedgnn.graph import stack_graphs
from verfedgnn.prepare import prepare
from verfedgnn.privacy.projection import Projection
from verfedgnn.protocol.coordinator import Coordinator
from verfedgnn.protocol.party import Party
from verfedgnn.runtime.local import LocalRuntime
from verfedgnn.training import party_secret

RESULTS = Path(__file__).resolve().parent.parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="ml-1m")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="write results/round_cost.md")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    began = time.perf_counter()
    parties = read_parties(options.data, parties=10, seed=0)
    config = Config.preset("paper", model="gcn")
    prepared = prepare(parties, config, torch.device("cpu"))
    read_seconds = time.perf_counter() - began
    members = [Party(p.input, config, party_secret(0, i)) for i, p in enumerate(prepared)]
    runtime = LocalRuntime(Coordinator(config, [p.party.name for p in prepared]), members)
    setup_seconds = time.perf_counter() - began

    ours, floor, plain = runtime.round, bare_products(runtime), straightforward(runtime)
    for warm in (ours, floor):
        for _ in range(5):
            warm()
    plain()
    times: dict[str, list[float]] = {"round": [], "floor": [], "straightforward": []}
    for index in range(options.rounds):
        times["round"].append(timed(ours))
        times["floor"].append(timed(floor))
        if index % 10 == 0:
            times["straightforward"].append(timed(plain))
    median = {name: statistics.median(values) for name, values in times.items()}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    result = {
        "data": options.data,
        "machine": f"{platform.machine()}, {options.threads} threads, torch {torch.__version__}",
        "milliseconds": {name: round(1e3 * value, 2) for name, value in median.items()},
        "round / floor": round(median["round"] / median["floor"], 2),
        "straightforward / round": round(median["straightforward"] / median["round"], 1),
        "read, split and graph, seconds": round(setup_seconds, 2),
        "of which read and split": round(read_seconds, 2),
        "peak memory of this process, GB (it holds the dense version too)": round(peak, 2),
    }
    print(json.dumps(result, indent=1))
    if options.write:
        rows = [f"| {name} | {json.dumps(value)} |" for name, value in result.items()]
        text = ["# What a round costs (GCN, preset paper, ten parties)", "", "```", str(__doc__).strip(), "```", ""]
        (RESULTS / "round_cost.md").write_text("\n".join([*text, "| what | measured |", "|---|---|", *rows]) + "\n")


def timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def bare_products(runtime: LocalRuntime) -> Callable[[], None]:
    """All products of one round of all parties, on operands that lie ready."""
    parties = list(runtime.parties.values())
    graph = stack_graphs([party.graph for party in parties])
    by_user, by_item = graph.adjacency
    dim, layers, count = 6, 2, len(parties)
    users, items = torch.rand(count * graph.users, dim), torch.rand(count * graph.items, dim)
    user_stack, item_stack = users.view(count, -1, dim), items.view(count, -1, dim)
    w = torch.rand(count, dim, dim)
    projection = parties[0].projection
    assert isinstance(projection, Projection)
    x = torch.rand(graph.users, count * layers * dim)
    y = projection.project(x)

    def run() -> None:
        for _ in range(layers):
            by_user @ items  # forward: users from items, items from users, and W for both
            by_item @ users
            torch.bmm(user_stack, w)
            torch.bmm(item_stack, w)
            by_item @ users  # backward: the transposed sums; W's and the operands' gradients
            by_user @ items
            for stack in (user_stack, item_stack):
                torch.bmm(stack.mT, stack)
                torch.bmm(stack, w.mT)
        projection.project(x)
        projection.reconstruct(y)

    return run


def straightforward(runtime: LocalRuntime) -> Callable[[], None]:
    """One round as a reader of the paper would first write it."""
    parties = list(runtime.parties.values())
    model = parties[0].model
    projection = parties[0].projection
    assert isinstance(projection, Projection)
    phi = projection.project(torch.eye(projection.users))
    adjacency = [party.graph.adjacency[0].to_dense() for party in parties]
    sent = [[torch.zeros(model.users, 6) for _ in range(2)] for _ in parties]

    def run() -> None:
        public = runtime.coordinator.replica.parameters
        fresh = []
        for index, party in enumerate(parties):
            flat, items = public.clone().requires_grad_(), party.private.parameters["items"].clone().requires_grad_()
            views = model.views(flat)
            others = [
                sum((phi.T @ (phi @ sent[p][k]) for p in range(len(parties)) if p != index), torch.zeros(model.users, 6))
                for k in range(2)
            ]
            prediction, own = dense_gcn(views, items, adjacency[index], others, party.graph.ratio.item())
            batch = party.batch(1).pairs
            error = prediction[batch.user.long(), batch.item.long()] - batch.rating
            torch.autograd.grad(error.square().sum(), [flat, items])
            fresh.append(own)
        sent[:] = fresh

    return run


def dense_gcn(
    views: dict[str, Tensor], items: Tensor, adjacency: Tensor, others: list[Tensor], ratio: float
) -> tuple[Tensor, list[Tensor]]:
    """GCN with a dense normalised adjacency; all ratings of the party and its neighbourhoods."""
    by_user = (ratio * adjacency.sum(1)).clamp(min=1).rsqrt()
    by_item = adjacency.sum(0).clamp(min=1).rsqrt()
    normal = by_user[:, None] * adjacency * by_item[None, :]
    users, mix = views["users"], views["mix"]
    h_users, h_items, own = mix[0] * users, mix[0] * items, []
    for k in range(2):
        neighbours = normal @ items
        own.append(neighbours.detach())
        weights = views["w"][k].T
        users, items = (
            torch.sigmoid((users + neighbours + others[k]) @ weights),
            torch.sigmoid((items + normal.T @ users) @ weights),
        )
        h_users, h_items = h_users + mix[k + 1] * users, h_items + mix[k + 1] * items
    return h_users @ h_items.T, own


if __name__ == "__main__":
    main()
