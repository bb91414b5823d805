"""Rank ML-1M with EASE and iALS on the pooled data, judged as the lists of our runs are (results/frontier.md).

    VERFEDGNN_DATA=... .venv/bin/python benchmarks/ranking_peers.py --tune [--device cuda]      # seed 0, validation only
    VERFEDGNN_DATA=... .venv/bin/python benchmarks/ranking_peers.py [--seeds 0 1 2] [--device cuda]

Both see the training pairs of all ten parties at once. Settings were chosen by NDCG@20 on the validation part of seed 0.
Each party's catalogue is ranked for each user who liked something there, without what the user rated before. `lightgcn.py`
measures LightGCN in the same way.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.core.metrics import RankingScores, measure_ranking
from verfedgnn.core.rating_scale import upper_quarter
from verfedgnn.data import read_parties
from verfedgnn.runs.prepared_data import Prepared, prepare

K = 20
SWEEPS = 16
EASE = {"pairs": "all", "damping": 1000.0}
"""The settings of EASE that were chosen on the validation part."""
IALS = {"pairs": "liked", "dim": 64, "unobserved": 0.1, "strength": 0.01, "power": 1.0}
"""The settings of iALS that were chosen on the validation part."""


def load(seed: int, device: str) -> list[Prepared]:
    """Return the ten parties of ML-1M."""
    return prepare(read_parties(["ml-1m"], parties=10, seed=seed), Config(seed=seed), torch.device(device))


def pooled(parties: list[Prepared], pairs: str) -> Tensor:
    """Return the training pairs of all parties as a matrix (N, M) of 0 and 1; with "liked", those of 4 stars or more."""
    columns = []
    for party in parties:
        table = party.party.ratings
        chosen = party.train
        if pairs == "liked":
            chosen = chosen.take(chosen.rating >= upper_quarter(table.scale))
        matrix = torch.zeros((table.n_users, table.n_items), device=chosen.user.device)
        matrix[chosen.user.long(), chosen.item.long()] = 1.0
        columns.append(matrix)
    return torch.cat(columns, 1)


def ease(seen: Tensor, damping: float) -> Tensor:
    """Return the scores of EASE (Steck 2019): X B with B = I - P diag(1 / diag P), P = (X^T X + damping I)^-1."""
    gram = (seen.T @ seen).double()
    gram.diagonal().add_(damping)
    inverse = torch.linalg.inv(gram)
    weights = -inverse / inverse.diagonal()
    weights.fill_diagonal_(0.0)
    return seen @ weights.float()


def ials(seen: Tensor, dim: int, unobserved: float, strength: float, power: float) -> Tensor:
    """Return the scores of iALS (Hu et al. 2008) with the regulariser of Rendle et al. 2022.

    The loss is sum_observed (1 - x_u . y_v)^2 + unobserved * sum_all (x_u . y_v)^2, and each row is regularised by
    strength * (its number of pairs + unobserved * the size of the other side)^power.
    """
    draw = torch.Generator(device="cpu").manual_seed(0)
    users, items = (
        (torch.randn((rows, dim), generator=draw) * 0.1 / dim**0.5).to(seen) for rows in seen.shape
    )
    for _ in range(SWEEPS):
        users = _solve(seen, items, unobserved, strength, power)
        items = _solve(seen.T, users, unobserved, strength, power)
    return users @ items.T


def _solve(seen: Tensor, fixed: Tensor, unobserved: float, strength: float, power: float) -> Tensor:
    dim = fixed.shape[1]
    products = (fixed.unsqueeze(2) * fixed.unsqueeze(1)).flatten(1)
    weight = strength * (seen.sum(1) + unobserved * len(fixed)) ** power
    every = unobserved * (fixed.T @ fixed)
    found = []
    for rows, part in zip(seen.split(2048), weight.split(2048), strict=True):
        left = (rows @ products).view(-1, dim, dim) + every
        left.diagonal(dim1=1, dim2=2).add_(part.unsqueeze(1))
        found.append(torch.linalg.solve(left, rows @ fixed))
    return torch.cat(found)


def figures(parties: list[Prepared], scores: Tensor, part: str) -> dict[str, float]:
    """Return means over users and parties on the test or the validation part."""
    total = RankingScores.zero()
    first = 0
    for party in parties:
        table = party.party.ratings
        own = scores[:, first : first + table.n_items]
        first += table.n_items
        judged, seen = (
            (party.test, [party.train, party.valid]) if part == "test" else (party.valid, [party.train])
        )
        wanted = judged.take(judged.rating >= upper_quarter(table.scale))
        total += measure_ranking(
            lambda rows, own=own: own[rows.long()], table.n_users, table.n_items, seen, wanted, K
        )
    return {name: round(value, 5) for name, value in total.means(K).items() if value is not None}


def tried() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the settings that `--tune` tries."""
    for pairs, damping in product(("all", "liked"), (50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0)):
        yield "ease", {"pairs": pairs, "damping": damping}
    for pairs, dim, unobserved, strength, power in product(
        ("all", "liked"), (32, 64, 128), (0.03, 0.1, 0.3), (0.001, 0.003, 0.01, 0.03), (0.5, 1.0)
    ):
        yield (
            "ials",
            {"pairs": pairs, "dim": dim, "unobserved": unobserved, "strength": strength, "power": power},
        )


def score(name: str, settings: dict[str, Any], matrices: dict[str, Tensor]) -> Tensor:
    """Return the scores (N, M) of one method."""
    given = {key: value for key, value in settings.items() if key != "pairs"}
    return {"ease": ease, "ials": ials}[name](matrices[settings["pairs"]], **given)


def main() -> None:
    """Tune on the validation part, or judge the chosen settings on the test part."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--seconds", type=float, default=3600.0, help="begin no trial after this time")
    parser.add_argument(
        "--then-judge", action="store_true", help="judge the best settings of --tune, not the listed ones"
    )
    options = parser.parse_args()
    started = time.perf_counter()
    chosen = {"ease": EASE, "ials": IALS}
    if options.tune:
        parties = load(0, options.device)
        matrices = {pairs: pooled(parties, pairs) for pairs in ("all", "liked")}
        best = dict.fromkeys(chosen, -1.0)
        for name, settings in tried():
            if time.perf_counter() - started > options.seconds:
                break
            found = figures(parties, score(name, settings, matrices), "valid")
            print(json.dumps({"method": name, **settings, "valid": found}), flush=True)
            if found[f"ndcg@{K}"] > best[name]:
                best[name] = found[f"ndcg@{K}"]
                chosen[name] = settings
        if not options.then_judge:
            return
    for seed in options.seeds:
        parties = load(seed, options.device)
        matrices = {pairs: pooled(parties, pairs) for pairs in ("all", "liked")}
        for name, settings in chosen.items():
            scores = score(name, settings, matrices)
            rows = {part: figures(parties, scores, part) for part in ("valid", "test")}
            print(json.dumps({"method": name, "seed": seed, **settings, **rows}), flush=True)


if __name__ == "__main__":
    main()
