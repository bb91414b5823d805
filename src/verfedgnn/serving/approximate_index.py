"""An approximate index for catalogues of many hundred thousand items: the lists nearest to a user are searched, not all items.

What it finds has its exact score; what lies in a list that was not searched is missed (results/serving.md has the recall).
Questions with a filter, with more left out than is worth fetching, or about a ranking, whose shares need every score, are
answered exactly.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from verfedgnn.core.errors import ConfigError
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.serving.ranker import Found, Shelf, Wish

FROM = 300_000
"""Items from which on a catalogue is indexed where that is asked for; below, exact scores are cheap enough."""
SEARCHED = 32
"""Lists searched for a question."""
MOST = 2000
"""Items fetched for a question."""


def _faiss() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            import faiss
    except ModuleNotFoundError:
        raise ConfigError("--approximate needs faiss: pip install 'verfedgnn[index]'") from None
    return faiss


class IndexedShelf(Shelf):
    """A shelf that looks into some lists of items instead of all."""

    def __init__(self, model: PartyModel, *, ranks: bool) -> None:
        super().__init__(model, ranks=ranks)
        faiss, count = _faiss(), self.count
        lists = round(4 * count**0.5)
        self._index = faiss.index_factory(
            model.items.shape[1], f"IVF{lists},Flat", faiss.METRIC_INNER_PRODUCT
        )
        vectors = model.items.numpy()
        self._index.train(vectors[:: max(1, count // (64 * lists))])
        self._index.add(vectors)
        self._index.nprobe = SEARCHED

    def best(self, wishes: Sequence[Wish]) -> list[Found]:
        """The answers, in order."""
        quick = [place for place, wish in enumerate(wishes) if self._is_quick(wish)]
        answers: dict[int, Found] = {}
        if quick:
            wanted = max(wishes[place].k + len(wishes[place].leave_out) for place in quick)
            vectors = torch.stack([wishes[place].vector for place in quick]).numpy()
            scores, rows = self._index.search(vectors, min(wanted, self.count))
            for place, own_scores, own_rows in zip(quick, scores.tolist(), rows.tolist(), strict=True):
                known, k = set(wishes[place].leave_out.tolist()), wishes[place].k
                pairs = [
                    (row, score)
                    for row, score in zip(own_rows, own_scores, strict=True)
                    if row >= 0 and row not in known
                ][:k]
                answers[place] = Found([row for row, _ in pairs], [score for _, score in pairs])
        rest = [place for place in range(len(wishes)) if place not in answers]
        if rest:
            answers.update(zip(rest, super().best([wishes[place] for place in rest]), strict=True))
        return [answers[place] for place in range(len(wishes))]

    def _is_quick(self, wish: Wish) -> bool:
        return not self.ranks and wish.only is None and wish.k + len(wish.leave_out) <= MOST
