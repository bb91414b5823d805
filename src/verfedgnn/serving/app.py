"""The FastAPI application: endpoints look up and describe, the batcher's thread scores, and a thread pool explains."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import orjson
from anyio import CapacityLimiter, to_thread
from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse

from verfedgnn.core.errors import DataError
from verfedgnn.core.installed import installed_version
from verfedgnn.data.ids import hint_spelling
from verfedgnn.runs.added_items import AddedItem
from verfedgnn.runs.run import Run
from verfedgnn.serving import schema
from verfedgnn.serving.catalogue import WITHOUT_ALONE, Catalogue, Unanswerable, View
from verfedgnn.serving.ranker import ItemRanker, RankedItems, RankingQuery, rank_together
from verfedgnn.serving.request_guard import PAGE_FILES, AccessLog, ApiKey, RequestGuard, ServerMetrics
from verfedgnn.serving.run_answers import describe_run
from verfedgnn.serving.schema import MAX_ITEMS, HttpProblem, describe_invalid
from verfedgnn.serving.split_test import ALONE, ModelName
from verfedgnn.serving.user_lists import ServedUser, UserProfile, find_similar, find_user
from verfedgnn.upkeep.new_items import NewItems

LARGEST_BATCH = 64
LONGEST_QUEUE = 4096

Numbers = Sequence[int]
"""Parties, by their place in the catalogue."""
Waiting = tuple[ItemRanker, RankingQuery, asyncio.Future[RankedItems]]


class RequestView(View):
    """What one request over HTTP may see of a catalogue."""

    whole: bool
    """Whether it may see who is a user of the run at a party that is not served."""

    def find_user(self, user: str, model: ModelName | None) -> ServedUser:
        """Return the user of the run with this id, to be served by `model`."""
        if model == ALONE and ALONE not in self.catalogue.lists:
            raise HttpProblem(404, "this run has no models of the parties alone", WITHOUT_ALONE)
        found = find_user(self.catalogue, user, model=model)
        if found.row is None:
            hint = hint_spelling(user, lambda other: self.catalogue.users.find(other) is not None)
            remedy = hint or "POST their ratings to /v1/recommendations to serve them as a newcomer"
            raise HttpProblem(404, "this user was not in training", remedy)
        return found

    def check_filters(self, filters: Mapping[str, str], known: Sequence[str] = ()) -> None:
        """Raise `HttpProblem` unless there are item columns of these names; `known` are parameters beside them."""
        existing = {name for p in self.allowed for name in self.catalogue.parties[p].table.columns}
        if not existing.issuperset(filters):
            parameters = f"parameters: {', '.join(known)}; " if known else ""
            remedy = f"{parameters}columns: {', '.join(sorted(existing)) or 'none'}"
            raise HttpProblem(400, "there is no such parameter or item column", remedy)


class Batcher:
    """A queue on the event loop, and one scoring thread: queries that arrive while it computes form the next batch."""

    def __init__(self) -> None:
        self._waiting: list[Waiting] = []
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "scores")

    async def rank(self, queries: Sequence[tuple[ItemRanker, RankingQuery]]) -> list[RankedItems]:
        """Return the answers in the order of `queries`, computed together with the queries of other requests."""
        if len(self._waiting) >= LONGEST_QUEUE:
            raise HttpProblem(503, "the server is overloaded", "try again in a second")
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[RankedItems]] = [loop.create_future() for _ in queries]
        self._waiting += [(*query, future) for query, future in zip(queries, futures, strict=True)]
        if self._task is None:
            self._task = loop.create_task(self._answer())  # starts after requests that arrived together
        return await asyncio.gather(*futures)

    async def _answer(self) -> None:
        """Answer batch by batch until nobody waits."""
        loop = asyncio.get_running_loop()
        while self._waiting:
            batch, self._waiting = self._waiting[:LARGEST_BATCH], self._waiting[LARGEST_BATCH:]
            batch = [entry for entry in batch if not entry[2].done()]  # without clients that disconnected
            queries = [(ranker, query) for ranker, query, _ in batch]
            try:
                answers = await loop.run_in_executor(self._thread, rank_together, queries)
            except Exception as error:
                for *_, future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            for (_, _, future), answer in zip(batch, answers, strict=True):
                if not future.done():
                    future.set_result(answer)
        self._task = None


UserId = Annotated[str, Query(description="Id of the user, as in the data.", min_length=1, max_length=1000)]
ItemId = Annotated[str, Query(description="Id of the item, as in the data.", min_length=1, max_length=1000)]
PartyName = Annotated[str | None, Query(description="The only party; all by default.", max_length=1000)]
Count = Annotated[int, Query(description="Maximum number of results.", ge=1, le=MAX_ITEMS)]
_MODEL = "Trained by all parties together, or by each party alone; federated by default, in a split test that of the bucket."
Model = Annotated[ModelName | None, Query(description=_MODEL)]
MaxReasons = Annotated[int, Query(description="Liked items named as reasons, at most.", ge=0, le=20)]
Text = Annotated[str, Query(max_length=1000)]
FILTERED = {("GET", "/v1/recommendations"), ("GET", "/v1/similar")}
"""Endpoints that also accept item columns as parameters and check them themselves."""
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": schema.ErrorResponse, "description": text}
    for status, text in {
        400: "The request is invalid",
        401: "The API key is missing or wrong",
        403: "The API key lacks a right, or a page of another site asks",
        404: "The user, item, party or model does not exist",
        413: "The request is too large",
        429: "Too many requests with this API key",
        503: "The server is overloaded, or the run is not served at present",
    }.items()
}


def _respond(value: Any) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")


async def _view(request: Request) -> RequestView:
    """Return what the request may see, as the request guard found it."""
    view = RequestView(request.app.state.catalogue, request.scope["parties"], "add the parameter party")
    view.whole = request.scope["whole"]
    return view


async def _read_filters(request: Request) -> dict[str, str]:
    """Return the parameters that filter by item column; raise `HttpProblem` for one that the endpoint would ignore."""
    known = [field.alias for field in request.scope["route"].dependant.query_params]
    filters = {name: value for name, value in request.query_params.items() if name not in known}
    if (request.method, request.url.path) in FILTERED:
        (await _view(request)).check_filters(filters, known)
    elif filters:
        names = ", ".join(sorted(known)) or "none"
        raise HttpProblem(400, "there is no such parameter", f"parameters: {names}")
    return filters


Seen = Annotated[RequestView, Depends(_view)]
Filters = Annotated[dict[str, str], Depends(_read_filters)]


def make_app(
    catalogue: Catalogue,
    *,
    keys: Sequence[ApiKey] = (),
    log: AccessLog | None = None,
    metrics: ServerMetrics | None = None,
    folder: Path | None = None,
) -> FastAPI:
    """Return the application that serves a catalogue; with `keys`, only to clients that send one of them.

    `metrics` are those of the process, by default new ones; items can be added to the run in `folder`.
    """
    metrics = metrics or ServerMetrics()
    app = FastAPI(
        dependencies=[Depends(_read_filters)],
        title="verfedgnn",
        version=installed_version(),
        description="Recommendations from a run. If the server has an API key, send it as `Authorization: Bearer KEY`.",
        docs_url=None,
        redoc_url=None,
        responses=ERRORS,
    )
    app.state.catalogue = catalogue
    names = [party.name for party in catalogue.parties]
    granted = {key.digest: (key, key.find_parties(names)) for key in keys}
    everybody = tuple(range(len(names)))
    app.add_middleware(RequestGuard, granted=granted, everybody=everybody, metrics=metrics, log=log)
    _add_error_handlers(app)
    _add_recommendations(app, catalogue)
    _add_items(app, folder)
    _add_page(app, catalogue)

    @app.get("/healthz")
    @app.get("/readyz")
    async def check_that_the_server_responds() -> Response:
        return _respond({"status": "ok"})

    @app.get("/metrics", response_class=PlainTextResponse)
    async def show_metrics_for_prometheus() -> Response:
        return Response(metrics.render(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return app


def _add_recommendations(app: FastAPI, catalogue: Catalogue) -> None:
    batcher = Batcher()

    async def answer(
        user: ServedUser, parties: Numbers, k: int, filters: Mapping[str, str], why: int, explained: Numbers
    ) -> Response:
        """Return the k best items of these parties, with up to `why` ratings at the parties `explained` as reasons."""
        make = partial(UserProfile, catalogue, user, parties)
        profile = make() if user.trained else await run_in_threadpool(make)  # folding in takes time
        best = profile.merge(await batcher.rank(profile.make_queries(k, filters)), k)
        reasons = await run_in_threadpool(profile.explain, best, explained, why, filters) if why else []
        bucket = {} if user.bucket is None else {"bucket": user.bucket}
        own = {"own_models": profile.own_models} if best and profile.own_models else {}
        return _respond({"recommendations": profile.describe(best, reasons)} | bucket | own)

    @app.get("/v1/recommendations", response_model=schema.RecommendationsResponse)
    async def recommend_items_to_a_user(
        filters: Filters,
        view: Seen,
        user: UserId,
        k: Count = 10,
        party: PartyName = None,
        model: Model = None,
        why: MaxReasons = 0,
    ) -> Response:
        """Return the best items the user has not rated. Every item column is a filter: `&category=book`."""
        found = view.find_user(user, model)
        parties = view.find_parties(party)
        return await answer(found, parties, k, filters, why, parties)

    @app.post("/v1/recommendations", response_model=schema.RecommendationsResponse)
    async def recommend_items_to_a_newcomer(newcomer: schema.Newcomer, view: Seen) -> Response:
        """Return the best items for a newcomer, from their own ratings, or for a known user with further ratings.

        Nothing is stored.
        """
        parties = view.find_parties(newcomer.party)
        view.check_filters(newcomer.where)
        given = ((rating.item, rating.party, rating.rating) for rating in newcomer.ratings)
        newer = await run_in_threadpool(view.read_ratings, given)
        found = find_user(view.catalogue, newcomer.user, newer)
        return await answer(found, parties, newcomer.k, newcomer.where, newcomer.why, view.allowed)

    @app.get("/v1/similar", response_model=schema.SimilarResponse)
    async def find_similar_items(
        filters: Filters,
        view: Seen,
        item: ItemId,
        party: PartyName = None,
        k: Count = 10,
        among: PartyName = None,
    ) -> Response:
        """Return the items most similar to an item, by the cosine of item directions in taste space.

        `among` names the only party to search. Every item column is a filter: `&category=book`.
        """
        place = view.find_item(item, party)
        parties = view.find_parties(among)
        found = await run_in_threadpool(find_similar, view.catalogue, *place, parties, k, filters)
        return _respond({"similar": found})


def _add_items(app: FastAPI, folder: Path | None) -> None:
    one_at_a_time = CapacityLimiter(1)  # each loads the run

    def add(folder: Path, party: str, request: schema.NewItemsRequest) -> dict[str, Any]:
        """Store the items in the run folder, where every worker notices them."""
        items = {}
        for item in request.items:
            ratings = {rating.user: (rating.rating, rating.time) for rating in item.ratings}
            items[item.item] = AddedItem(item.item, item.title, item.columns, ratings)
        if len(items) < len(request.items):
            remedy = "give each item once, with all its ratings"
            raise HttpProblem(400, "the request has an item twice", remedy)
        report = NewItems(folder, Run.load(folder, added=False), party).add(items)
        added = [{"item": item.item, "ratings": len(item.ratings)} for item in report.items]
        return {"items": added, "unknown_users": report.unknown_users}

    @app.post("/v1/items", response_model=schema.NewItemsResponse)
    async def add_new_items(request: schema.NewItemsRequest, view: Seen) -> Response:
        """Give items that were not in training a vector from their first ratings; they are served within seconds."""
        if folder is None:
            raise HttpProblem(404, "this server has no run folder to add items to", "use verfedgnn serve RUN")
        parties = view.find_parties(request.party)
        party = view.name_parties(parties)
        if len(parties) > 1:
            raise HttpProblem(400, "several parties are served", f"add the field party, one of: {party}")
        return _respond(await to_thread.run_sync(add, folder, party, request, limiter=one_at_a_time))


def _add_page(app: FastAPI, catalogue: Catalogue) -> None:
    describe = cache(partial(describe_run, catalogue))

    @app.get("/v1/run")
    async def describe_the_run(view: Seen) -> Response:
        return _respond(await run_in_threadpool(describe, tuple(view.allowed), view.whole))

    @app.get("/v1/users")
    async def find_users_by_the_start_of_their_id(
        view: Seen, starts: Text = "", party: PartyName = None, k: Count = 8
    ) -> Response:
        parties = view.find_parties(party)
        found = []
        for row in catalogue.index_users(tuple(view.allowed), view.whole).find_prefix(starts, k):
            rated = sum(len(own.items) for own in catalogue.find_ratings(row, parties).values())
            found.append({"user": str(catalogue.user_ids[row]), "ratings": rated})
        return _respond({"users": found})

    @app.get("/v1/items")
    async def find_items_by_a_part_of_their_title(
        view: Seen, text: Text = "", party: PartyName = None, k: Count = 8
    ) -> Response:
        """Return the most rated items whose title or id contains the text; titles that start with it come first."""
        parties = view.find_parties(party)
        found = await run_in_threadpool(catalogue.search_items, text, parties, k)
        return _respond({"items": [catalogue.parties[p].describe(row) for p, row in found]})

    @app.get("/v1/history")
    async def list_highest_ratings(
        view: Seen, user: UserId, party: PartyName = None, k: Count = 10
    ) -> Response:
        """Return the highest ratings, how many there are, how many count as liked, and at how many other parties there are some.

        `known` is false for a user who was not in training.
        """
        parties = view.find_parties(party)
        others = [p for p in view.allowed if p not in parties]
        who = ServedUser(catalogue.users.find(user))
        rated = [
            (rating, p, item)
            for p, own in who.find_ratings(catalogue, parties).items()
            for rating, item in zip(own.ratings.tolist(), own.items.tolist(), strict=True)
        ]
        best = sorted(rated, key=lambda entry: -entry[0])[:k]
        items = [vars(catalogue.parties[p].describe(row)) | {"rating": rating} for rating, p, row in best]
        answer = {
            "count": len(rated),
            "liked": sum(rating >= catalogue.parties[p].liked_from for rating, p, _ in rated),
            "elsewhere": len(who.find_ratings(catalogue, others)),
            "known": who.row is not None,
            "items": items,
        }
        return _respond(answer)

    folder = resources.files("verfedgnn.serving") / "page"
    files = {path: ((folder / name).read_bytes(), kind) for path, (name, kind) in PAGE_FILES.items()}

    async def send_file(request: Request) -> Response:
        content, kind = files[request.scope["route"].path]
        return Response(content, media_type=kind)

    for path in files:
        app.get(path, include_in_schema=False)(send_file)


def _add_error_handlers(app: FastAPI) -> None:
    """Turn errors of requests into `HttpProblem`, which the request guard sends."""

    @app.exception_handler(DataError)
    @app.exception_handler(Unanswerable)
    async def reject_unanswerable(request: Request, error: DataError | Unanswerable) -> Response:
        cause, _, remedy = str(error).partition("; ")
        raise HttpProblem(getattr(error, "status", 400), cause, remedy or "correct the request")

    @app.exception_handler(RequestValidationError)
    async def reject_invalid(_: Request, error: RequestValidationError) -> Response:
        cause = describe_invalid(error.errors()[0], ("query", "body"))
        # a body may hold lone surrogates, which UTF-8 cannot encode
        encodable = cause.encode(errors="replace").decode()
        raise HttpProblem(400, encodable, "correct the request; /openapi.json describes every parameter")

    @app.exception_handler(HTTPException)
    async def reject_unrouted(request: Request, error: HTTPException) -> Response:
        headers = {}
        if error.status_code == 405:  # FastAPI names only the methods of the first route with this path
            routes = [route for route in app.routes if getattr(route, "path", None) == request.url.path]
            allowed = {method for route in routes for method in getattr(route, "methods", ())}
            headers["allow"] = ", ".join(sorted(allowed))
        cause = str(error.detail).lower()
        raise HttpProblem(error.status_code, cause, "/openapi.json lists all endpoints", headers)
