"""Measure a ranker trained on pooled data: LightGCN of PyTorch Geometric, on our split of ML-1M and by our
metric.

    pip install torch_geometric
    .venv/bin/python benchmarks/lightgcn.py path/to/ml-1m [--seeds 0 1 2] [--device cpu] [--jobs 1]     # a JSON line a seed
    .venv/bin/python benchmarks/lightgcn.py path/to/ml-1m --tune [--set layers=2 ...]                   # seed 0, validation only

LightGCN sees the training pairs of all ten parties in one graph. Its epoch is chosen by NDCG@20 on the
validation part, and so were the settings, on seed 0; `--tune` tries the chosen ones and every single change
of them. It is judged as our runs are: each party's catalogue ranked for each user who liked something there,
what the user rated before left out. Popularity is judged beside it. Test figures exceed validation figures
for every model: there, what the user liked in the validation part is out of the way.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import LGConv, LightGCN
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from verfedgnn.config import Config
from verfedgnn.core.metrics import RankingScores, measure_ranking
from verfedgnn.core.rating_scale import upper_quarter
from verfedgnn.data import read_ratings, split_items
from verfedgnn.runs.prepared_data import Prepared, prepare

K = 20
PARTIES = 10
Model = list[tuple[Tensor, Tensor]]
"""h_u and h_v at each party."""


@dataclass(frozen=True)
class Settings:
    """Settings of one training; the defaults are the chosen ones."""

    graph: str = "all"
    """Training pairs that embeddings propagate along: all, or liked (4 stars or more)."""
    positives: str = "liked"
    """Training pairs to rank above what the user has not rated: all, or liked."""
    dim: int = 64
    layers: int = 2
    lr: float = 2e-2
    l2: float = 1e-3
    batch: int = 16384
    epochs: int = 200
    patience: int = 16
    """Number of epochs without a better validation NDCG after which training ends."""
    every: int = 4
    """Number of epochs between validations."""


TRIED: dict[str, tuple[Any, ...]] = {
    "graph": ("all", "liked"),
    "positives": ("all", "liked"),
    "dim": (64, 128),
    "layers": (1, 2, 3),
    "lr": (5e-3, 1e-2, 2e-2),
    "l2": (1e-5, 1e-4, 3e-4, 6e-4, 1e-3, 2e-3, 1e-2),
    "batch": (2048, 8192, 16384),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", help="folder of ML-1M")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time, one thread each")
    parser.add_argument(
        "--tune", action="store_true", help="try every single change of the settings on seed 0"
    )
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="NAME=VALUE", help="settings other than the chosen ones"
    )
    options = parser.parse_args()
    kinds = {field.name: type(field.default) for field in fields(Settings)}
    given = dict(word.split("=") for word in options.set)
    settings = Settings(**{name: kinds[name](value) for name, value in given.items()})
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        if options.tune:
            runs = [pool.submit(tune, options.data, each, options.device) for each in changes(settings)]
        else:
            runs = [
                pool.submit(judge, options.data, seed, settings, options.device) for seed in options.seeds
            ]
        for run in as_completed(runs):
            print(json.dumps(run.result()), flush=True)


def changes(settings: Settings) -> list[Settings]:
    """Return the settings and all settings that differ from them in one place."""
    others = [replace(settings, **{name: value}) for name, values in TRIED.items() for value in values]
    return [settings, *(other for other in others if other != settings)]


def tune(data: str, settings: Settings, device: str) -> dict[str, Any]:
    """Return settings with their validation figures; the test part is not used."""
    parties = load(data, 0, device)
    start = time.perf_counter()
    model, epoch, last = train(parties, settings, seed=0)
    return {
        "settings": asdict(settings),
        "valid": figures(parties, model, "valid"),
        "best_epoch": epoch,
        "epochs": last,
        "seconds": round(time.perf_counter() - start, 1),
    }


def judge(data: str, seed: int, settings: Settings, device: str) -> dict[str, Any]:
    """Evaluate popularity and LightGCN with these settings on one seed."""
    parties = load(data, seed, device)
    models = {
        "popularity": popularity(parties, liked_only=False),
        "popularity of liked": popularity(parties, liked_only=True),
    }
    start = time.perf_counter()
    models["lightgcn"], epoch, last = train(parties, settings, seed)
    seconds = time.perf_counter() - start
    rows = {
        name: {part: figures(parties, model, part) for part in ("valid", "test")}
        for name, model in models.items()
    }
    found = {"seed": seed, **rows, "best_epoch": epoch, "epochs": last}
    return {**found, "settings": asdict(settings), "seconds": round(seconds, 1), "device": device}


@lru_cache(1)
def load(data: str, seed: int, device: str) -> list[Prepared]:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "Sparse (CSR|invariant)")
    return prepare(
        split_items(read_ratings(data), PARTIES, seed=seed), Config(seed=seed), torch.device(device)
    )


def figures(parties: list[Prepared], model: Model, part: str) -> dict[str, float]:
    """Return means over users and parties, on the test part as our own evaluation does, or on the
    validation part.
    """
    total = RankingScores.zero()
    for party, (users, items) in zip(parties, model, strict=True):
        judged, seen = (
            (party.test, [party.train, party.valid]) if part == "test" else (party.valid, [party.train])
        )
        wanted = judged.take(judged.rating >= upper_quarter(party.party.ratings.scale))
        total += measure_ranking(
            lambda rows, users=users, items=items: users[rows] @ items.T,
            len(users),
            len(items),
            seen,
            wanted,
            K,
        )
    return {name: round(value, 5) for name, value in total.means(K).items() if value is not None}


def popularity(parties: list[Prepared], liked_only: bool) -> Model:
    """Return the model that gives everybody the items with most training ratings, or most ratings of 4
    stars or more.
    """
    model = []
    for party in parties:
        table = party.party.ratings
        pairs = party.train
        if liked_only:
            pairs = pairs.take(pairs.rating >= upper_quarter(table.scale))
        count = torch.bincount(pairs.item.long(), minlength=table.n_items).float()
        model.append((count.new_ones(table.n_users, 1), count[:, None]))
    return model


def pooled(parties: list[Prepared], kind: str) -> Tensor:
    """Return all parties' training pairs (2, n) as rows of users and of all items; with kind "liked" those
    of 4 stars or more.
    """
    columns = []
    first = 0
    for party in parties:
        table = party.party.ratings
        pairs = party.train
        if kind == "liked":
            pairs = pairs.take(pairs.rating >= upper_quarter(table.scale))
        columns.append(torch.stack([pairs.user.long(), pairs.item.long() + first]))
        first += table.n_items
    return torch.cat(columns, 1)


def train(parties: list[Prepared], settings: Settings, seed: int) -> tuple[Model, int, int]:
    """Return the model with the best validation NDCG, its epoch, and the last epoch."""
    torch.manual_seed(seed)
    users = parties[0].party.ratings.n_users
    sizes = [party.party.ratings.n_items for party in parties]
    nodes = users + sum(sizes)
    positives = pooled(parties, settings.positives)
    device = positives.device
    taken = torch.zeros(users, sum(sizes), dtype=torch.bool, device=device)
    taken[positives[0], positives[1]] = True
    graph = adjacency(pooled(parties, settings.graph), users, nodes)
    network = LightGCN(nodes, settings.dim, settings.layers)
    network.convs = torch.nn.ModuleList(SymmetricConv(normalize=False) for _ in range(settings.layers))
    network.to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.lr)
    best = -1.0
    best_epoch = 0
    best_model = []
    epoch = 0
    while epoch < min(settings.epochs, best_epoch + settings.patience):
        epoch += 1
        for user, item, other in batches(positives, taken, settings.batch):
            labels = torch.stack([torch.cat([user, user]), torch.cat([item, other]) + users])
            above, below = network(graph, labels).chunk(2)
            nodes_of_batch = torch.cat([user, item + users, other + users])
            loss = network.recommendation_loss(above, below, nodes_of_batch, lambda_reg=settings.l2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch % settings.every == 0:
            with torch.no_grad():
                h = network.get_embedding(graph)
            model = [(h[:users], items) for items in h[users:].split(sizes)]
            ndcg = figures(parties, model, "valid")[f"ndcg@{K}"]
            if ndcg > best:
                best = ndcg
                best_epoch = epoch
                best_model = model
    return best_model, best_epoch, epoch


def batches(positives: Tensor, taken: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield batches of an epoch: users, one of their items, and one drawn uniformly. A drawn item that is
    theirs is redrawn up to three times.
    """
    for index in torch.randperm(positives.shape[1], device=positives.device).split(size):
        user, item = positives[:, index]
        other = torch.randint_like(item, taken.shape[1])
        for _ in range(3):
            other = torch.where(taken[user, other], torch.randint_like(item, taken.shape[1]), other)
        yield user, item, other


def adjacency(pairs: Tensor, users: int, nodes: int) -> Tensor:
    """Return D^-1/2 A D^-1/2 of the graph of users and items."""
    user = pairs[0]
    item = pairs[1] + users
    edges = torch.stack([torch.cat([user, item]), torch.cat([item, user])])
    edges, weights = gcn_norm(edges, None, nodes, add_self_loops=False)
    return torch.sparse_coo_tensor(edges, weights, (nodes, nodes)).to_sparse_csr()


class SymmetricConv(LGConv):
    """LightGCN's convolution on a symmetric matrix: the gradient uses the same product, so no transposed
    matrix is built.
    """

    def message_and_aggregate(self, adj_t: Tensor, x: Tensor) -> Tensor:  # noqa: D102
        return SymmetricProduct.apply(adj_t, x)


class SymmetricProduct(torch.autograd.Function):
    """A x for a symmetric A; the gradient of x is A times that of the result."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, x: Tensor) -> Tensor:  # noqa: D102
        ctx.matrix = matrix
        return matrix @ x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:  # type: ignore[override]  # noqa: D102
        return None, ctx.matrix @ gradient


if __name__ == "__main__":
    main()
