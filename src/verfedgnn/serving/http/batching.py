"""Dynamic batching: queries that arrive while a batch is computed form the next batch, scored by one matrix product."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from verfedgnn.serving.http.http_problems import HttpProblem
from verfedgnn.serving.ranker import ItemRanker, RankedItems, RankingQuery

LARGEST_BATCH = 64
LONGEST_QUEUE = 4096
"""Queries that may wait. Further ones are refused at once, so that the waiting ones are not all late."""

Waiting = tuple[ItemRanker, RankingQuery, "asyncio.Future[RankedItems]"]


class Batcher:
    """A queue on the event loop and one scoring thread that answers it batch by batch."""

    def __init__(self, on_batch: Callable[[int], None] = lambda size: None) -> None:
        self._waiting: list[Waiting] = []
        self._running = False
        self._thread = ThreadPoolExecutor(1, "scores")
        self._on_batch = on_batch

    async def rank(self, queries: Sequence[tuple[ItemRanker, RankingQuery]]) -> list[RankedItems]:
        """Return the answers in the order of `queries`, computed together with the queries of other requests."""
        if len(self._waiting) >= LONGEST_QUEUE:
            raise HttpProblem(503, "the server is overloaded", "try again in a second, or start more workers")
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[RankedItems]] = []
        for ranker, query in queries:
            futures.append(loop.create_future())
            self._waiting.append((ranker, query, futures[-1]))
        if not self._running:
            self._running = True
            loop.call_soon(self._start_batch, loop)  # requests that have arrived together share a batch
        return [await future for future in futures]

    def _start_batch(self, loop: asyncio.AbstractEventLoop) -> None:
        batch, self._waiting = self._waiting[:LARGEST_BATCH], self._waiting[LARGEST_BATCH:]
        batch = [entry for entry in batch if not entry[2].done()]  # without clients that disconnected
        if not batch and not self._waiting:
            self._running = False
            return
        self._on_batch(len(batch))
        done = loop.run_in_executor(self._thread, _compute, batch)
        done.add_done_callback(lambda result: self._deliver(loop, batch, result))

    def _deliver(
        self,
        loop: asyncio.AbstractEventLoop,
        batch: list[Waiting],
        result: asyncio.Future[list[RankedItems]],
    ) -> None:
        error = result.exception()
        for place, (_, _, future) in enumerate(batch):
            if future.done():
                continue
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result.result()[place])
        self._start_batch(loop)

    def close(self) -> None:
        """Stop the scoring thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _compute(batch: Sequence[Waiting]) -> list[RankedItems]:
    by_ranker: dict[int, list[int]] = defaultdict(list)
    for place, (ranker, _, _) in enumerate(batch):
        by_ranker[id(ranker)].append(place)
    answers: dict[int, RankedItems] = {}
    for places in by_ranker.values():
        ranked = batch[places[0]][0].rank([batch[place][1] for place in places])
        answers.update(zip(places, ranked, strict=True))
    return [answers[place] for place in range(len(batch))]
