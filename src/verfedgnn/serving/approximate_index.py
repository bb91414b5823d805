"""Approximate ranking for catalogues of several hundred thousand items, by searching only the item lists nearest to a user.

Scores of the returned items are exact, but items in lists that were not searched are missed (see results/serving.md for the
recall). Queries with a filter or with many excluded items are answered exactly. Models that order lists get no index: the
shares need the scores of the whole catalogue, and the index would not see the item weights.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from verfedgnn.core.errors import ConfigError
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.serving.ranker import ItemRanker, RankedItems, RankingQuery

MIN_ITEMS = 300_000
"""Smallest catalogue that gets an index; below this, exact scores are cheap enough."""
SEARCHED_LISTS = 32
"""Lists searched per query."""
MAX_FETCHED = 2000
"""Items fetched per query; a query that needs more is answered exactly."""


def _import_faiss() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            import faiss
    except ModuleNotFoundError:
        raise ConfigError(
            "--approximate needs faiss, which is not installed. Run: pip install 'verfedgnn[index]'"
        ) from None
    return faiss


class ApproximateRanker(ItemRanker):
    """An `ItemRanker` for predicted ratings that searches an inverted index where a query allows it."""

    def __init__(self, model: PartyModel) -> None:
        super().__init__(model, ranks=False)
        faiss = _import_faiss()
        lists = round(4 * self.count**0.5)
        self._index = faiss.index_factory(
            model.items.shape[1], f"IVF{lists},Flat", faiss.METRIC_INNER_PRODUCT
        )
        vectors = model.items.numpy()
        self._index.train(vectors[:: max(1, self.count // (64 * lists))])
        self._index.add(vectors)
        self._index.nprobe = SEARCHED_LISTS

    def rank(self, queries: Sequence[RankingQuery]) -> list[RankedItems]:
        """Return the answers in the order of `queries`, from the index where possible."""
        indexed = [place for place, query in enumerate(queries) if self._can_use_index(query)]
        answers: dict[int, RankedItems] = {}
        if indexed:
            found = self._search([queries[place] for place in indexed])
            answers.update(zip(indexed, found, strict=True))
        rest = [place for place in range(len(queries)) if place not in answers]
        if rest:
            answers.update(zip(rest, super().rank([queries[place] for place in rest]), strict=True))
        return [answers[place] for place in range(len(queries))]

    def _search(self, queries: Sequence[RankingQuery]) -> list[RankedItems]:
        count = max(query.k + len(query.exclude) for query in queries)
        vectors = torch.stack([query.vector for query in queries]).numpy()
        scores, rows = self._index.search(vectors, min(count, self.count))
        answers = []
        for query, query_scores, query_rows in zip(queries, scores.tolist(), rows.tolist(), strict=True):
            excluded = set(query.exclude.tolist())
            pairs = [
                (row, score)
                for row, score in zip(query_rows, query_scores, strict=True)
                if row >= 0 and row not in excluded
            ][: query.k]
            answers.append(RankedItems([row for row, _ in pairs], [score for _, score in pairs]))
        return answers

    def _can_use_index(self, query: RankingQuery) -> bool:
        return query.allowed is None and query.k + len(query.exclude) <= MAX_FETCHED
