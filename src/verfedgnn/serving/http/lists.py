"""Lists for requests: names become rows of the catalogue, queries of many requests form batches, and simple requests take a shortcut.

`allowed` are the numbers of the parties that a request may see. Other parties do not exist for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

import orjson
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Scope, Send

from verfedgnn.serving.catalogue import WITHOUT_ALONE, Catalogue
from verfedgnn.serving.fold_in import UserRatings, group_ratings
from verfedgnn.serving.http.request_guard import ServerMetrics
from verfedgnn.serving.http.schema import MAX_ITEMS, HttpProblem, NewcomerRating, send_json
from verfedgnn.serving.ranker import ItemRanker, RankedItems, RankingQuery, rank_together
from verfedgnn.serving.split_test import ALONE, ModelName
from verfedgnn.serving.user_lists import RecommendedItem, ScoredItem, ServedUser, UserProfile

LARGEST_BATCH = 64
LONGEST_QUEUE = 4096
"""Queries that may wait. Further ones are refused at once, so that the waiting ones are not all late."""
SIMPLE_PARAMETERS = {"user", "k", "party", "model"}

Waiting = tuple[ItemRanker, RankingQuery, "asyncio.Future[RankedItems]"]


def find_user(catalogue: Catalogue, user: str) -> ServedUser:
    """Return the user of the run with this id."""
    row = catalogue.users.find(user)
    if row is None:
        remedy = "POST their ratings to /v1/recommendations to serve them as a newcomer"
        raise HttpProblem(404, "this user was not in training", remedy)
    return ServedUser(row)


def find_parties(catalogue: Catalogue, party: str | None, allowed: Sequence[int]) -> list[int]:
    """Return the number of the party with this name, or the numbers of all allowed parties."""
    if party is None:
        return list(allowed)
    found = [p for p in allowed if catalogue.parties[p].name == party]
    if not found:
        names = ", ".join(catalogue.parties[p].name for p in allowed)
        raise HttpProblem(404, "there is no such party here", f"use one of: {names}")
    return found


def find_item(catalogue: Catalogue, item: str, party: str | None, allowed: Sequence[int]) -> tuple[int, int]:
    """Return the party and the row of an item."""
    found = catalogue.find_item(item, find_parties(catalogue, party, allowed))
    if not found:
        raise HttpProblem(404, "there is no such item here", "give the item's id as in the data of this run")
    if len(found) > 1:
        remedy = f"add the parameter party, one of: {', '.join(catalogue.parties[p].name for p, _ in found)}"
        raise HttpProblem(400, "several parties have an item with this id", remedy)
    return found[0]


def check_model(catalogue: Catalogue, model: ModelName | None) -> None:
    """Raise `HttpProblem` if the run lacks the models of the parties alone and `model` asks for them."""
    if model == ALONE and ALONE not in catalogue.rankers:
        raise HttpProblem(404, "this run has no models of the parties alone", WITHOUT_ALONE)


def read_filters(
    catalogue: Catalogue, given: Mapping[str, str], known: Sequence[str], allowed: Sequence[int]
) -> dict[str, str]:
    """Return the parameters that filter by item column: those not in `known`, checked against the columns."""
    filters = {name: value for name, value in given.items() if name not in known}
    existing = {name for p in allowed for name in catalogue.parties[p].table.columns}
    if not existing.issuperset(filters):
        parameters = f"parameters: {', '.join(known)}; " if known else ""
        remedy = f"{parameters}columns: {', '.join(sorted(existing)) or 'none'}"
        raise HttpProblem(400, "there is no such parameter or item column", remedy)
    return filters


def read_newcomer(
    catalogue: Catalogue, ratings: Sequence[NewcomerRating], allowed: Sequence[int]
) -> list[UserRatings]:
    """Return a newcomer's ratings by party, after checking items and scales."""
    found: dict[tuple[int, int], float] = {}
    for number, given in enumerate(ratings):
        try:
            place = find_item(catalogue, given.item, given.party, allowed)
        except HttpProblem as problem:
            raise HttpProblem(problem.status, f"ratings.{number}: {problem.cause}", problem.remedy) from None
        low, high = catalogue.parties[place[0]].table.scale
        if not low <= given.rating <= high:
            remedy = f"give a rating from {low:g} to {high:g}"
            raise HttpProblem(400, f"ratings.{number}: the rating is outside the scale", remedy)
        found[place] = given.rating
    return group_ratings(found)


class Batcher:
    """Dynamic batching: a queue on the event loop, and one scoring thread that answers it batch by batch.

    Queries that arrive while a batch is computed form the next one, scored by one matrix product.
    """

    def __init__(self, metrics: ServerMetrics) -> None:
        self._waiting: list[Waiting] = []
        self._running = False
        self._thread = ThreadPoolExecutor(1, "scores")
        self._metrics = metrics

    async def rank(self, queries: Sequence[tuple[ItemRanker, RankingQuery]]) -> list[RankedItems]:
        """Return the answers in the order of `queries`, computed together with the queries of other requests."""
        if len(self._waiting) >= LONGEST_QUEUE:
            raise HttpProblem(503, "the server is overloaded", "try again in a second")
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
        self._metrics.count_batch(len(batch))
        queries = [(ranker, query) for ranker, query, _ in batch]
        done = loop.run_in_executor(self._thread, rank_together, queries)
        done.add_done_callback(lambda result: self._deliver(loop, batch, result))

    def _deliver(
        self, loop: asyncio.AbstractEventLoop, batch: list[Waiting], result: asyncio.Future[list[RankedItems]]
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


class Lists:
    """The lists of a catalogue, as endpoints and the shortcut ask for them."""

    def __init__(self, catalogue: Catalogue, metrics: ServerMetrics) -> None:
        self.catalogue = catalogue
        self.batcher = Batcher(metrics)
        self._metrics = metrics
        self._served: list[set[int]] = [set() for _ in catalogue.parties]
        for party in catalogue.parties:
            metrics.items.labels(party.name).set(party.table.n_items)
            metrics.served.labels(party.name).set(0)

    async def make(
        self,
        users: Sequence[tuple[ModelName, ServedUser]],
        parties: Sequence[int],
        k: int,
        filters: Mapping[str, str],
    ) -> list[tuple[UserProfile, list[ScoredItem]]]:
        """Return the profile and the k best items of each user, in the given model."""
        profiles = []
        for model, user in users:
            make = partial(UserProfile, self.catalogue, model, user, parties)
            profiles.append(
                make() if user.trained else await run_in_threadpool(make)
            )  # folding in takes time
        queries = [query for profile in profiles for query in profile.make_queries(k, filters)]
        ranked = iter(await self.batcher.rank(queries))
        lists = []
        for profile in profiles:
            best = profile.merge([next(ranked) for _ in parties], k)
            lists.append((profile, best))
            for p, row, _ in best:
                if row not in self._served[p]:
                    self._served[p].add(row)
                    self._metrics.served.labels(self.catalogue.parties[p].name).inc()
        return lists


def mark_bucket(items: Sequence[RecommendedItem], bucket: ModelName | None) -> dict[str, Any]:
    """Return the response with a user's items, and with the user's bucket if there is one."""
    return {"recommendations": items} | ({} if bucket is None else {"bucket": bucket})


class FastPath:
    """ASGI middleware that answers the most frequent request, the list of a known user, without FastAPI's request handling.

    It answers only requests that are valid and simple: known parameters, each given once, without explanations or
    filters. All others go to the endpoint, so errors are described in one place. Both give the same response. results/serving.md
    has the throughput with and without it.
    """

    path = "/v1/recommendations"
    """Route of the requests, as it appears in the metrics."""

    def __init__(self, app: ASGIApp, lists: Lists) -> None:
        self.app = app
        self._lists = lists
        self._catalogue = lists.catalogue

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a simple request, or pass any other request on."""
        simple = self._parse(scope)
        if simple is None:
            await self.app(scope, receive, send)
            return
        scope["route"] = self
        (model, bucket), user, parties, k = simple
        ((profile, best),) = await self._lists.make([(model, user)], parties, k, {})
        await send_json(send, 200, orjson.dumps(mark_bucket(profile.describe(best), bucket)))

    def _parse(
        self, scope: Scope
    ) -> tuple[tuple[ModelName, ModelName | None], ServedUser, list[int], int] | None:
        """Return model and bucket, user, parties and number of items, or None if the request is not simple."""
        if scope["type"] != "http" or scope["path"] != self.path or scope["method"] != "GET":
            return None
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = dict(pairs)
        k = given.get("k", "10")
        model = next((name for name in self._catalogue.rankers if name == given.get("model")), None)
        if (
            len(given) < len(pairs)
            or not given.keys() <= SIMPLE_PARAMETERS
            or (model is None and "model" in given)
        ):
            return None
        if not (k.isascii() and k.isdigit() and len(k) <= len(str(MAX_ITEMS)) and 1 <= int(k) <= MAX_ITEMS):
            return None
        try:
            parties = find_parties(self._catalogue, given.get("party"), scope["access"].parties)
            name = given.get("user", "")
            user = find_user(self._catalogue, name)
        except HttpProblem:
            return None
        return self._catalogue.choose_model(model, name), user, parties, int(k)
