"""Other recommenders on the same data, split and machine with one thread: time to an RMSE, and time per
epoch.

Peers see all parties' ratings in one table and protect nothing. The report names peers that are not
installed.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.data import TRAIN, VALID, read_ratings, split_by_rating
from verfedgnn.reports.document import Block, Paragraph, Table
from verfedgnn.research.bench.bench_suite import BenchScope, Figures, Question, Task
from verfedgnn.research.bench.bytes_curve import LEAN
from verfedgnn.research.bench.measure import medians, timed
from verfedgnn.research.bench.phases import federation
from verfedgnn.training.local_runtime import LocalRuntime

TARGETS = (0.9152, 0.875)
"""Validation RMSE of the paper's GCN on ML-1M, and what factorisation of pooled data reaches with some
training.
"""
EPOCHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 70, 100)

Column = NDArray[Any]
Predict = Callable[[Column, Column], Column]
Rows = tuple[Column, Column, Column]
Fit = Callable[[int], Predict]
"""Trains from scratch for a number of epochs."""


def rows(data: str, part: int, seed: int = 0) -> tuple[Rows, tuple[float, float]]:
    """Return users, items and ratings of one part of the pooled table, and the rating scale."""
    table = read_ratings(data)
    chosen = split_by_rating(table, seed=seed) == part
    return (table.user[chosen], table.item[chosen], table.rating[chosen]), table.scale


def reach(*, peer: str, data: str, targets: Sequence[float], most: int = 100) -> dict[str, Any]:
    """Return the fewest epochs with which a peer, trained from scratch, reaches each validation RMSE, and
    the seconds of that training.
    """
    module, package, settings, ready = PEERS[peer]
    try:
        version = getattr(importlib.import_module(module), "__version__", "")
    except ImportError:
        return {"missing": f"not installed (pip install {package})"}
    (train_rows, scale) = rows(data, TRAIN)
    (valid, _) = rows(data, VALID)
    made: list[Fit] = []
    prepared = timed(lambda: made.append(ready(train_rows)))
    fit = made[0]
    tried = []
    left = sorted(targets, reverse=True)
    fit(1)  # compilation and loading at first use do not count
    for epochs in [e for e in EPOCHS if e <= most]:
        predict: list[Predict] = []
        spent = timed(lambda: predict.append(fit(epochs)))  # noqa: B023
        guess = np.clip(predict[0](valid[0], valid[1]), *scale)
        tried.append({"epochs": epochs, **spent, "rmse": float(np.sqrt(np.mean((guess - valid[2]) ** 2)))})
        left = [target for target in left if tried[-1]["rmse"] > target]
        if not left or (len(tried) > 4 and tried[-1]["rmse"] > tried[-4]["rmse"]):
            break
    reached = {f"{t:g}": next((at for at in tried if at["rmse"] <= t), None) for t in targets}
    best = min(tried, key=lambda at: at["rmse"])
    return {"version": version, "settings": settings, "ready": prepared, "reached": reached, "best": best}


def ours(
    *, data: str, preset: str, model: Any, values: Mapping[str, Any], targets: Sequence[float], most: int
) -> dict[str, Any]:
    """Return the fewest rounds with which a federation reaches each RMSE, and the seconds of so many
    rounds without validations.
    """

    def joined(every: int) -> LocalRuntime:
        return federation(
            data, Config.preset(preset, model=model, **{**values, "gate": False, "evaluate_every": every})
        )

    runtimes: list[LocalRuntime] = []
    ready = timed(lambda: runtimes.append(joined(1)))
    watched = runtimes[0]
    tried: list[dict[str, Any]] = []
    while len(tried) < most and not (tried and tried[-1]["rmse"] <= min(targets)):
        closed = watched.round()
        assert closed.valid_error is not None
        tried.append({"round": closed.round, "rmse": closed.valid_error})
    reached: dict[str, Any] = {}
    for target in targets:
        at = next((at for at in tried if at["rmse"] <= target), None)
        again = joined(10**6)
        reached[f"{target:g}"] = at and {**at, **timed(partial(_rounds, again, at["round"]))}
    best = min(tried, key=lambda at: at["rmse"])
    return {"ready": ready, "reached": reached, "best": best}


def _rounds(runtime: LocalRuntime, count: int) -> None:
    for _ in range(count):
        runtime.round()


def _cornac(known: Rows) -> Fit:
    import cornac

    data = cornac.data.Dataset.from_uir(zip(*(column.tolist() for column in known), strict=True), seed=0)
    user = _places(data.uid_map)
    item = _places(data.iid_map)

    def fit(epochs: int) -> Predict:
        settings = {
            "k": 10,
            "learning_rate": 0.01,
            "lambda_reg": 0.05,
            "use_bias": True,
            "num_threads": 1,
            "seed": 0,
        }
        model = cornac.models.MF(max_iter=epochs, **settings).fit(data)
        return _factors(
            model.global_mean, model.u_biases, model.i_biases, model.u_factors, model.i_factors, user, item
        )

    return fit


def _surprise(known: Rows) -> Fit:
    import surprise

    table = [(u, i, r, None) for u, i, r in zip(*(column.tolist() for column in known), strict=True)]
    data = surprise.Dataset(surprise.Reader(rating_scale=(1, 5)))
    trainset = data.construct_trainset(table)
    user = _places(trainset._raw2inner_id_users)
    item = _places(trainset._raw2inner_id_items)

    def fit(epochs: int) -> Predict:
        model = surprise.SVD(n_factors=20, n_epochs=epochs, lr_all=0.01, reg_all=0.05, random_state=0).fit(
            trainset
        )
        return _factors(trainset.global_mean, model.bu, model.bi, model.pu, model.qi, user, item)

    return fit


def _lenskit(known: Rows) -> Fit:
    import pandas as pd
    from lenskit.als import BiasedMFScorer
    from lenskit.data import from_interactions_df
    from lenskit.training import TrainingOptions

    frame = pd.DataFrame(dict(zip(("user_id", "item_id", "rating"), known, strict=True)))
    data = from_interactions_df(frame)
    user, item = (_places({key: n for n, key in enumerate(ids.ids())}) for ids in (data.users, data.items))

    def fit(epochs: int) -> Predict:
        model = BiasedMFScorer(embedding_size=20, epochs=epochs, regularization=0.1, damping=5.0)
        model.train(data, TrainingOptions(rng=0))
        bias = model.bias
        factors = (model.user_embeddings, model.item_embeddings)
        return _factors(bias.global_bias, bias.user_biases, bias.item_biases, *factors, user, item)

    return fit


def _places(numbers: Mapping[Any, int]) -> NDArray[np.int64]:
    """Map our numbers to a peer's own; -1 for those it has not seen."""
    place = np.full(1 + max(int(key) for key in numbers), -1, np.int64)
    for key, number in numbers.items():
        place[int(key)] = number
    return place


def _factors(
    mean: float,
    user_bias: Column,
    item_bias: Column,
    users: Column,
    items: Column,
    user: Column,
    item: Column,
) -> Predict:
    def predict(u: Column, i: Column) -> Column:
        u, i = (np.where(n < len(at), at[np.minimum(n, len(at) - 1)], -1) for n, at in ((u, user), (i, item)))
        product = np.einsum("nd,nd->n", users[u], items[i])
        guess: Column = (
            mean
            + np.where(u >= 0, user_bias[u], 0)
            + np.where(i >= 0, item_bias[i], 0)
            + np.where((u >= 0) & (i >= 0), product, 0)
        )
        return guess

    return predict


PEERS: dict[str, tuple[str, str, str, Callable[[Rows], Fit]]] = {
    "Cornac MF": ("cornac", "cornac", "10 factors, SGD 0.01, regularisation 0.05, biases", _cornac),
    "Surprise SVD": ("surprise", "scikit-surprise", "20 factors, SGD 0.01, regularisation 0.05", _surprise),
    "LensKit BiasedMF": ("lenskit", "lenskit", "20 factors, ALS, regularisation 0.1, damping 5", _lenskit),
}
"""Module, package, settings in words, and training function of each peer."""
OURS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "quick": (
        "lean",
        "ggnn",
        "preset lean, GGNN, D = 8, half of the users a round, rescale_users = 1.28",
        {"dim": 8, "user_blocks": 2, "average": 0.98, "rescale_users": 1.28},
    ),
    "best": ("best", "gcn", "preset best, GCN", {}),
    "lean": ("best", "ggnn", "preset best, GGNN, as in the lean training below", LEAN),
}
"""Preset, GNN, description and settings of our own trainings."""


def lightgcn(*, data: str, dim: int = 32, layers: int = 2, times: int = 8) -> dict[str, Any]:
    """Measure a full step over all training ratings: PyTorch Geometric's LightGCN on pooled data, and our
    rounds with the same D.
    """
    found: dict[str, Any] = {"dim": dim}
    for name, preset, values in (
        ("ours, preset best", "best", {}),
        (
            "ours, preset paper",
            "paper",
            {"dim": dim, "layers": layers, "batch": 0, "evaluate_every": 10**6, "epochs": 10**6},
        ),
    ):
        runtime = federation(data, Config.preset(preset, model="gcn", **{"evaluate_every": 10**6, **values}))
        for _ in range(3):
            runtime.round()
        found[name] = medians([timed(runtime.round) for _ in range(times)])
    try:
        from torch_geometric.nn import LightGCN
        from torch_geometric.nn.conv.gcn_conv import gcn_norm
    except ImportError:
        return {**found, "missing": "not installed (pip install torch_geometric)"}
    (user, item, rating), _ = rows(data, TRAIN)
    users = int(user.max()) + 1
    items = int(item.max()) + 1
    pairs = torch.stack([torch.from_numpy(user).long(), torch.from_numpy(item).long() + users])
    edges = torch.cat([pairs, pairs.flip(0)], 1)
    wanted = torch.from_numpy(rating)
    places, weights = gcn_norm(edges, None, users + items, add_self_loops=False)
    matrix = torch.sparse_coo_tensor(places, weights, (users + items, users + items)).to_sparse_csr()
    for name, graph, normalize in (
        ("PyG LightGCN", edges, True),
        ("PyG LightGCN, sparse matrix", matrix, False),
    ):
        torch.manual_seed(0)
        model = LightGCN(users + items, dim, layers, normalize=normalize)
        step = _step(model, graph, pairs, wanted)
        step()
        found[name] = medians([timed(step) for _ in range(times)])
    return found


def _step(model: Any, graph: Tensor, pairs: Tensor, wanted: Tensor) -> Callable[[], None]:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        (model(graph, pairs) - wanted).square().mean().backward()
        optimizer.step()

    return step


def tasks(scope: BenchScope) -> list[Task]:
    """Return tasks for the time to equal RMSE, then for the time per epoch."""
    data, targets = (scope.data, TARGETS) if not scope.quick else ("synthetic", (1.0, 0.9))
    made = [
        Task(
            _task(name),
            "peers:reach",
            {"peer": name, "data": data, "targets": targets, "most": scope.pick(100, 3)},
        )
        for name in PEERS
    ]
    mine = [
        Task(
            f"peer-ours-{name}",
            "peers:ours",
            {
                "data": data,
                "preset": preset,
                "model": model,
                "values": values,
                "targets": targets,
                "most": scope.pick(400, 5),
            },
        )
        for name, (preset, model, _, values) in OURS.items()
    ]
    return [*made, *mine, Task("peer-lightgcn", "peers:lightgcn", {"data": data, "times": scope.pick(8, 2)})]


def answer(found: Mapping[str, Figures], folder: str) -> Sequence[Block | None]:
    """Return seconds to each RMSE with ratios to Cornac, then an epoch next to LightGCN's."""
    mine = {f"{name}, pooled": found[_task(name)] for name in PEERS if _task(name) in found}
    blocks: list[Block | None] = []
    if mine:
        targets = sorted(
            {float(t) for f in mine.values() for t in f.get("reached", {})}, reverse=True
        ) or list(TARGETS)
        for name, (_, _, words, _) in OURS.items():
            if f"peer-ours-{name}" in found:
                mine[f"ours, ten parties, {name}"] = {**found[f"peer-ours-{name}"], "settings": words}
        reference = found.get(_task("Cornac MF"), {}).get("reached", {})
        header = [
            "",
            *(word for t in targets for word in (f"CPU s to {t:g}", "times Cornac")),
            "set-up, s",
            "best seen",
            "settings",
        ]
        table = []
        for title, figures in mine.items():
            if "missing" in figures:
                table.append([title, figures["missing"], *[""] * (2 * len(targets) + 2)])
                continue
            cells = []
            for t in targets:
                at = figures["reached"].get(f"{t:g}")
                other = reference.get(f"{t:g}")
                cells += [
                    _at(at, figures["best"]["rmse"]),
                    f"{at['cpu'] / other['cpu']:.1f}" if at and other else "-",
                ]
            best = figures["best"]
            count = f"epoch {best['epochs']}" if "epochs" in best else f"round {best['round']}"
            version = f"{figures['version']}: " if figures.get("version") else ""
            ready = f"{figures['ready']['cpu']:.2f}" if "ready" in figures else "-"
            table.append(
                [title, *cells, ready, f"{best['rmse']:.4f} ({count})", f"{version}{figures['settings']}"]
            )
        blocks += [
            Table(header, table),
            Paragraph(
                "Validation RMSE on one 60/20/20 split with seed 0; CPU seconds of all threads. The seconds are those of a training "
                "from scratch without validations, with the fewest epochs or rounds that reach the RMSE; predictions are clipped "
                "to the scale. All trained until they reached the last value, stopped improving, or finished 400 rounds. "
                "**set-up**: from the table of training ratings to the recommender's own format; ours from the file, split, cut into ten parties, "
                "and joined. "
                "Ours: all parties and the coordinator on one core, with protection. The peers' settings were chosen once, "
                "without a search; **quick** is one of 25 settings that were tried."
            ),
        ]
    if "peer-lightgcn" in found:
        figures = found["peer-lightgcn"]
        versions = ("PyG LightGCN", "PyG LightGCN, sparse matrix")
        other = min(
            (figures[name] for name in versions if name in figures),
            key=lambda at: float(at["cpu"]),
            default=None,
        )
        table = [
            [
                name,
                f"{1e3 * figures[name]['cpu']:.0f}",
                f"{figures[name]['cpu'] / other['cpu']:.2f}" if other else "-",
            ]
            for name in (*versions, "ours, preset best", "ours, preset paper")
            if name in figures
        ]
        if "missing" in figures:
            table.insert(0, ["PyG LightGCN", figures["missing"], ""])
        blocks += [
            Table(["one step over all training ratings", "CPU ms", "times the faster LightGCN"], table),
            Paragraph(
                f"D = {figures['dim']}; LightGCN and preset paper with two layers, preset best with its one. LightGCN: "
                "pooled graph, as an edge index and as a normalised matrix, squared error of all training ratings, Adam. "
                "Ours: a round of ten parties and the coordinator with all training ratings, encoded."
            ),
        ]
    return blocks


def _task(peer: str) -> str:
    return f"peer-{peer.split()[0].lower()}"


def _at(at: Mapping[str, Any] | None, best: float) -> str:
    if at is None:
        return "not reached" if math.isfinite(best) else "-"
    return f"{at['cpu']:.2f} ({'epoch' if 'epochs' in at else 'round'} {at.get('epochs') or at['round']})"


QUESTION = Question("peers", "Against other recommenders", tasks, answer)
