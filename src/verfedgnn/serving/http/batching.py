"""Requests that arrive while others are computed are computed together next: one product of matrices for all of them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from verfedgnn.serving.http.http_problems import Problem
from verfedgnn.serving.ranker import Found, Shelf, Wish

LARGEST_BATCH = 64
LONGEST_QUEUE = 4096
"""Questions that may wait; more are turned away at once instead of all being late."""

Waiting = tuple[Shelf, Wish, "asyncio.Future[Found]"]


class Batcher:
    """Collects questions on the event loop and answers them in one thread, a batch at a time."""

    def __init__(self, watch: Callable[[int], None] = lambda size: None) -> None:
        self._waiting: list[Waiting] = []
        self._running = False
        self._thread = ThreadPoolExecutor(1, "scores")
        self._watch = watch

    async def ask(self, questions: Sequence[tuple[Shelf, Wish]]) -> list[Found]:
        """The answers, in order; together with whatever else is asked meanwhile."""
        if len(self._waiting) >= LONGEST_QUEUE:
            raise Problem(
                503, "more is asked than can be computed", "ask again in a second, or start more servers"
            )
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[Found]] = []
        for shelf, wish in questions:
            futures.append(loop.create_future())
            self._waiting.append((shelf, wish, futures[-1]))
        if not self._running:
            self._running = True
            loop.call_soon(self._next, loop)  # what has arrived together is computed together
        return [await future for future in futures]

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        batch, self._waiting = self._waiting[:LARGEST_BATCH], self._waiting[LARGEST_BATCH:]
        batch = [entry for entry in batch if not entry[2].done()]  # whoever hung up
        if not batch and not self._waiting:
            self._running = False
            return
        self._watch(len(batch))
        done = loop.run_in_executor(self._thread, _compute, batch)
        done.add_done_callback(lambda result: self._deliver(loop, batch, result))

    def _deliver(
        self, loop: asyncio.AbstractEventLoop, batch: list[Waiting], result: asyncio.Future[list[Found]]
    ) -> None:
        error = result.exception()
        for place, (_, _, future) in enumerate(batch):
            if future.done():
                continue
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result.result()[place])
        self._next(loop)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _compute(batch: Sequence[Waiting]) -> list[Found]:
    by_shelf: dict[int, list[int]] = defaultdict(list)
    for place, (shelf, _, _) in enumerate(batch):
        by_shelf[id(shelf)].append(place)
    answers: dict[int, Found] = {}
    for places in by_shelf.values():
        found = batch[places[0]][0].best([batch[place][1] for place in places])
        answers.update(zip(places, found, strict=True))
    return [answers[place] for place in range(len(batch))]
