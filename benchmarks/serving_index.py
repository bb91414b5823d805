"""Exact against approximate ranking, for `benchmarks/serving.py --index`."""

from __future__ import annotations

import time

import numpy as np
import torch

from verfedgnn.runs.party_model import PartyModel
from verfedgnn.serving.ranker import ItemRanker, RankingQuery


def vectors(count: int, columns: int, rng: np.random.Generator) -> np.ndarray:
    """Draw vectors in 200 clusters, which suit an index better than independent ones."""
    centres = np.random.default_rng(1).normal(0, 1, (200, columns))
    return (centres[rng.integers(0, 200, count)] + rng.normal(0, 0.7, (count, columns))).astype(np.float32)


def compare_indexes(items: int, columns: int, *, graph: bool) -> list[tuple[str, float, float, float]]:
    """Return the name, build seconds, recall of the ten best items and CPU ms per query of each kind of ranking."""
    import faiss

    faiss.omp_set_num_threads(1)
    rng = np.random.default_rng(0)
    base, asked = vectors(items, columns, rng), vectors(256, columns, rng)
    model = PartyModel(torch.from_numpy(asked), torch.from_numpy(base), torch.empty(0))
    ranker = ItemRanker(model, ranks=False)
    queries = [RankingQuery(vector, 10, np.empty(0, np.int64)) for vector in model.users]
    truth = [set(found.rows) for found in ranker.rank(queries)]
    rows = []
    for batch in (1, 8, 32):
        begin = time.process_time()
        for start in range(0, len(queries), batch):
            ranker.rank(queries[start : start + batch])
        rows.append(
            (f"exact, batches of {batch}", 0.0, 1.0, (time.process_time() - begin) / len(queries) * 1000)
        )
    lists = round(4 * items**0.5)
    kinds = {
        f"IVF, {lists} lists": (
            faiss.index_factory(columns, f"IVF{lists},Flat", faiss.METRIC_INNER_PRODUCT),
            "nprobe",
            (8, 32, 128),
        )
    }
    if graph:
        kinds["HNSW, 16 links"] = (
            faiss.IndexHNSWFlat(columns, 16, faiss.METRIC_INNER_PRODUCT),
            "ef",
            (32, 128),
        )
    for name, (index, knob, values) in kinds.items():
        begin = time.process_time()
        index.train(base[:: max(1, items // 100_000)])
        index.add(base)
        built = time.process_time() - begin
        for value in values:
            if knob == "ef":
                index.hnsw.efSearch = value
            else:
                index.nprobe = value
            begin = time.process_time()
            found = [index.search(asked[i : i + 1], 10)[1][0] for i in range(len(asked))]
            spent = (time.process_time() - begin) / len(asked) * 1000
            recall = float(
                np.mean([len(set(f.tolist()) & t) / 10 for f, t in zip(found, truth, strict=True)])
            )
            rows.append((f"{name}, {knob} {value}", built, recall, spent))
    return rows
