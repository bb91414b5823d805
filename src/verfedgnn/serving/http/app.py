"""The FastAPI application: endpoints look up and describe, the batcher's thread scores, and a thread pool explains."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
from anyio import CapacityLimiter, to_thread
from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse

from verfedgnn.core.version import installed_version
from verfedgnn.serving.catalogue import FEDERATED, IMAGE, Catalogue
from verfedgnn.serving.explain import (
    describe_recommendations,
    explain_recommendations,
    find_similar,
    merge_rankings,
)
from verfedgnn.serving.fold_in import UserRatings
from verfedgnn.serving.http import lookup
from verfedgnn.serving.http.access_log import AccessLog
from verfedgnn.serving.http.api_keys import ALL_RIGHTS, Access, ApiKey, TokenBucket, grant, make_limits
from verfedgnn.serving.http.batch_endpoint import answer_batch
from verfedgnn.serving.http.batching import Batcher
from verfedgnn.serving.http.coverage import ServedCoverage
from verfedgnn.serving.http.fast_path import FastPath
from verfedgnn.serving.http.http_problems import HttpProblem, describe_invalid_request
from verfedgnn.serving.http.item_pictures import KINDS, Pictures
from verfedgnn.serving.http.new_items_endpoint import add_new_items
from verfedgnn.serving.http.page_files import PAGE_FILES, read_page_file
from verfedgnn.serving.http.request_guard import RequestGuard
from verfedgnn.serving.http.schema import (
    MAX_ITEMS,
    BatchRequest,
    BatchResponse,
    ErrorResponse,
    Newcomer,
    NewItemsRequest,
    NewItemsResponse,
    PredictionResponse,
    RecommendationsResponse,
    SimilarResponse,
)
from verfedgnn.serving.http.server_metrics import ServerMetrics
from verfedgnn.serving.run_overview import describe_run
from verfedgnn.serving.user_profile import ServedUser, all_ratings, make_queries, profile_user, rated_by

UserId = Annotated[
    str, Query(description="Id of the user, as in the data.", min_length=1, max_length=1000, examples=["17"])
]
ItemId = Annotated[
    str, Query(description="Id of the item, as in the data.", min_length=1, max_length=1000, examples=["50"])
]
PartyName = Annotated[
    str | None, Query(description="Name of the only party to consider; all by default.", max_length=1000)
]
Count = Annotated[int, Query(description="Maximum number of results.", ge=1, le=MAX_ITEMS)]
ModelName = Annotated[
    Literal["federated", "alone"],
    Query(description="Model trained by all parties together, or by each party alone."),
]
MaxReasons = Annotated[
    int, Query(description="Maximum number of items the user liked that are named as reasons.", ge=0, le=20)
]
NO_PICTURES = Pictures()
FILTERED = {("GET", "/v1/recommendations"), ("GET", "/v1/similar")}
"""Endpoints that also accept item columns as parameters and check them themselves."""
ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorResponse, "description": "The request is invalid"},
    401: {"model": ErrorResponse, "description": "The API key is missing or wrong"},
    403: {"model": ErrorResponse, "description": "The API key lacks a right, or a page of another site asks"},
    404: {"model": ErrorResponse, "description": "The user, item, party or model does not exist"},
    413: {"model": ErrorResponse, "description": "The request is too large"},
    429: {"model": ErrorResponse, "description": "Too many requests with this API key"},
    503: {
        "model": ErrorResponse,
        "description": "The server is overloaded, or the run is not served at present",
    },
}


def _json_response(value: Any) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")


async def _reject_unknown_parameters(request: Request) -> None:
    """Raise `HttpProblem` for a parameter that the endpoint would ignore."""
    known = {field.alias for field in request.scope["route"].dependant.query_params}
    filtered = (request.method, request.url.path) in FILTERED
    if not filtered and not known.issuperset(request.query_params):
        names = ", ".join(sorted(known)) or "none"
        raise HttpProblem(400, "there is no such parameter", f"parameters: {names}")


async def _read_access(request: Request) -> Access:
    """Return what the request may do, as the request guard found it."""
    access: Access = request.scope["access"]
    return access


Granted = Annotated[Access, Depends(_read_access)]


def make_app(
    catalogue: Catalogue,
    *,
    keys: Sequence[ApiKey] = (),
    log: AccessLog | None = None,
    metrics: ServerMetrics | None = None,
    pictures: Pictures = NO_PICTURES,
    limits: Mapping[str, TokenBucket | None] | None = None,
    others: Sequence[str] = (),
    folder: Path | None = None,
) -> FastAPI:
    """Return the application that serves a catalogue; with `keys`, only to clients that send one of them.

    `metrics` and `limits` (rate limits by name of the key) are those of the process, by default new ones. `others` are the names
    of runs that the page shows beside this one. `folder` is the run folder, to which items can be added.
    """
    metrics = metrics or ServerMetrics()
    batcher = Batcher(metrics.count_batch)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        # so that the first newcomer does not wait for them
        await run_in_threadpool(lambda: (catalogue.priors, catalogue.rating_priors))
        if catalogue.user_tables:
            await run_in_threadpool(lambda: (catalogue.featured, catalogue.featured_ratings))
        yield
        batcher.close()
        if log is not None:
            log.close()

    app = FastAPI(
        dependencies=[Depends(_reject_unknown_parameters)],
        title="verfedgnn",
        version=installed_version(),
        description="Recommendations from a run. If the server has an API key, send it as `Authorization: Bearer KEY`.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        responses=ERRORS,
    )
    coverage = ServedCoverage(catalogue, metrics)
    app.add_middleware(FastPath, catalogue=catalogue, batcher=batcher, coverage=coverage)
    names = [party.name for party in catalogue.parties]
    buckets = make_limits(keys, 1) if limits is None else limits
    granted = {key.digest: grant(key, names, buckets[key.name]) for key in keys}
    everybody = Access(None, ALL_RIGHTS, tuple(range(len(names))))
    app.add_middleware(
        RequestGuard,
        granted=granted,
        everybody=everybody,
        metrics=metrics,
        log=log,
        image_hosts=pictures.hosts,
    )
    _add_error_handlers(app)
    _add_recommendations(app, catalogue, batcher, coverage)
    _add_lookups(app, catalogue)
    _add_items(app, catalogue, folder)
    _add_page(app, catalogue, pictures, others)
    _add_server_status(app, metrics)
    return app


def _add_recommendations(
    app: FastAPI, catalogue: Catalogue, batcher: Batcher, coverage: ServedCoverage
) -> None:
    async def answer(
        model: str,
        user: ServedUser,
        parties: Sequence[int],
        k: int,
        filters: Mapping[str, str],
        why: int,
        rated: Sequence[UserRatings],
    ) -> Response:
        """Return the k best items of these parties, with up to `why` of the `rated` items as reasons."""
        profile = await run_in_threadpool(profile_user, catalogue, model, user, parties)
        queries = make_queries(catalogue, model, profile, k, filters)
        best = merge_rankings(catalogue, profile, await batcher.rank(queries), k)
        coverage.note(best)
        reasons: list[dict[str, Any]] = []
        if why:
            reasons = await run_in_threadpool(
                explain_recommendations, catalogue, model, profile, rated, best, why, filters
            )
        items = describe_recommendations(catalogue, model, profile, best, reasons)
        return _json_response({"recommendations": items})

    @app.get(
        "/v1/recommendations",
        response_model=RecommendationsResponse,
        tags=["recommend"],
        summary="Recommend items to a user",
    )
    async def recommend(
        request: Request,
        access: Granted,
        user: UserId,
        k: Count = 10,
        party: PartyName = None,
        model: ModelName = "federated",
        why: MaxReasons = 0,
    ) -> Response:
        """Return the best items the user has not rated. Every item column is a filter: `&category=book`."""
        who = lookup.find_user(catalogue, user, access.parties)
        parties = lookup.find_parties(catalogue, party, access.parties)
        known = ("user", "k", "party", "model", "why")
        filters = lookup.read_filters(catalogue, request.query_params, known, access.parties)
        lookup.check_model(catalogue, model)
        rated = rated_by(catalogue, who, parties) if why else []
        return await answer(model, who, parties, k, filters, why, rated)

    @app.post(
        "/v1/recommendations",
        response_model=RecommendationsResponse,
        tags=["recommend"],
        summary="Recommend items to a newcomer",
    )
    async def recommend_to_newcomer(newcomer: Newcomer, access: Granted) -> Response:
        """Return the best items for a newcomer, from their own ratings, or for a known user with further ratings.

        Nothing is stored.
        """
        parties = lookup.find_parties(catalogue, newcomer.party, access.parties)
        filters = lookup.read_filters(catalogue, newcomer.where, (), access.parties)
        given = await run_in_threadpool(lookup.read_newcomer, catalogue, newcomer.ratings, access.parties)
        who = lookup.find_user_with(catalogue, newcomer.user, given, access.parties)
        why = newcomer.why
        rated = rated_by(catalogue, who, access.parties) if why else []
        return await answer(FEDERATED, who, parties, newcomer.k, filters, why, rated)

    @app.post(
        "/v1/recommendations/batch",
        response_model=BatchResponse,
        tags=["recommend"],
        summary="Recommend items to many users",
    )
    async def recommend_to_many(batch: BatchRequest, access: Granted) -> Response:
        """Return the best items for up to 1,000 users. A user who was not in training gets an error as answer."""
        access.charge(len(batch.users) - 1)
        answer = await answer_batch(catalogue, batcher, batch, access.parties)
        return Response(answer, media_type="application/json")


def _add_lookups(app: FastAPI, catalogue: Catalogue) -> None:
    @app.get("/v1/similar", response_model=SimilarResponse, tags=["recommend"], summary="Find similar items")
    async def find_similar_items(
        request: Request,
        access: Granted,
        item: ItemId,
        party: PartyName = None,
        k: Count = 10,
        among: PartyName = None,
    ) -> Response:
        """Return the items most similar to an item, by the cosine of item directions in taste space.

        `among` names the only party to search. Every item column is a filter: `&category=book`.
        """
        p, row = lookup.find_item(catalogue, item, party, access.parties)
        parties = lookup.find_parties(catalogue, among, access.parties)
        known = ("item", "party", "k", "among")
        filters = lookup.read_filters(catalogue, request.query_params, known, access.parties)
        found = await run_in_threadpool(find_similar, catalogue, p, row, parties, k, filters)
        return _json_response({"similar": found})

    @app.get("/v1/rating", response_model=PredictionResponse, tags=["recommend"], summary="Predict a rating")
    async def predict_rating(
        access: Granted, user: UserId, item: ItemId, party: PartyName = None, model: ModelName = "federated"
    ) -> Response:
        """Return the predicted rating of an item, its share of the unrated items, and the known rating, if any."""
        who = lookup.find_user(catalogue, user, access.parties)
        p, row = lookup.find_item(catalogue, item, party, access.parties)
        lookup.check_model(catalogue, model)
        profile = await run_in_threadpool(profile_user, catalogue, model, who, [p])
        ((ranker, query),) = make_queries(catalogue, model, profile, 1, {})
        score = ranker.score_item(query, row)
        (described,) = describe_recommendations(catalogue, model, profile, [(p, row, score)])
        known = {own.party: own for own in all_ratings(catalogue, who, [p])}
        found = known[p].ratings[known[p].items == row].tolist() if p in known else []
        return _json_response({**described, "rated": found[0] if found else None})


def _add_items(app: FastAPI, catalogue: Catalogue, folder: Path | None) -> None:
    one_at_a_time = CapacityLimiter(1)  # each loads the run

    @app.post("/v1/items", response_model=NewItemsResponse, tags=["items"], summary="Add new items")
    async def add_items(request: NewItemsRequest, access: Granted) -> Response:
        """Give items that were not in training a vector from their first ratings; they are served within seconds."""
        if folder is None:
            raise HttpProblem(404, "this server has no run folder to add items to", "use verfedgnn serve RUN")
        parties = lookup.find_parties(catalogue, request.party, access.parties)
        if len(parties) > 1:
            names = ", ".join(catalogue.parties[p].name for p in parties)
            raise HttpProblem(400, "several parties are served", f"add the field party, one of: {names}")
        name = catalogue.parties[parties[0]].name
        found = await to_thread.run_sync(add_new_items, folder, name, request, limiter=one_at_a_time)
        return _json_response(found)


def _add_page(app: FastAPI, catalogue: Catalogue, pictures: Pictures, others: Sequence[str]) -> None:
    describe = cache(lambda parties: describe_run(catalogue, parties))

    @app.get("/v1/run", tags=["page"], summary="Describe the run")
    async def show_run(access: Granted) -> Response:
        sources = {"folder": pictures.folder is not None, "hosts": pictures.hosts}
        described = await run_in_threadpool(describe, access.parties)
        return _json_response({**described, "pictures": sources, "others": others})

    @app.get("/v1/users", tags=["page"], summary="Find users by the start of their id")
    async def find_users(
        access: Granted,
        starts: Annotated[str, Query(max_length=1000)] = "",
        party: PartyName = None,
        k: Count = 8,
    ) -> Response:
        parties = lookup.find_parties(catalogue, party, access.parties)
        found = []
        for user in lookup.find_user_ids(catalogue, starts, k, access.parties):
            rated = all_ratings(catalogue, lookup.find_user(catalogue, user, access.parties), parties)
            found.append({"user": user, "ratings": sum(len(own.items) for own in rated)})
        return _json_response({"users": found})

    @app.get("/v1/items", tags=["page"], summary="Find items by a part of their title")
    async def find_items(
        access: Granted,
        text: Annotated[str, Query(max_length=1000)] = "",
        party: PartyName = None,
        k: Count = 8,
    ) -> Response:
        """Return the most rated items whose title or id contains the text; titles that start with it come first."""
        parties = lookup.find_parties(catalogue, party, access.parties)
        found = await run_in_threadpool(catalogue.search_items, text, parties, k)
        return _json_response({"items": [catalogue.parties[p].describe(row) for p, row in found]})

    @app.get("/v1/history", tags=["page"], summary="List a user's highest ratings")
    async def show_history(access: Granted, user: UserId, party: PartyName = None, k: Count = 10) -> Response:
        """Return the highest ratings, how many ratings there are, and how many of them count as liked.

        `elsewhere` counts the other parties at which the user has ratings, of those that the request may see.
        `known` is false for a user whom the server cannot serve without ratings from the request. Then `similar` has ids that
        look like this one.
        """
        parties = lookup.find_parties(catalogue, party, access.parties)
        others = [p for p in access.parties if p not in parties]
        who = lookup.find_user_with(catalogue, user, (), access.parties)
        rated = [
            (rating, own.party, item)
            for own in all_ratings(catalogue, who, parties)
            for rating, item in zip(own.ratings.tolist(), own.items.tolist(), strict=True)
        ]
        best = sorted(rated, key=lambda entry: -entry[0])[:k]
        items = [{**catalogue.parties[p].describe(item), "rating": value} for value, p, item in best]
        liked = sum(rating >= catalogue.parties[p].liked_from for rating, p, _ in rated)
        answer = {
            "count": len(rated),
            "liked": liked,
            "elsewhere": sum(len(own.items) > 0 for own in all_ratings(catalogue, who, others)),
            "known": who.row is not None or bool(who.newer) or bool(who.features),
            "newer": bool(who.newer),
            "trained": who.row is not None,
        }
        if not answer["known"]:
            answer["similar"] = catalogue.index_users(access.parties).find_similar(user, 3)
        return _json_response(answer | {"items": items})

    @app.get(
        "/v1/image",
        tags=["page"],
        summary="Show the picture of an item",
        response_class=Response,
        responses={
            200: {"content": {kind: {} for kind in sorted(set(KINDS.values()))}},
            204: {"description": "The item has no picture"},
        },
    )
    async def show_image(access: Granted, item: ItemId, party: PartyName = None) -> Response:
        """Return the picture that the item column `image` names, from the folder of `serve --images`; 204 without one."""
        p, row = lookup.find_item(catalogue, item, party, access.parties)
        named = catalogue.parties[p].table.columns.get(IMAGE)
        found = await run_in_threadpool(pictures.read, "" if named is None else str(named[row]))
        return Response(status_code=204) if found is None else Response(found[0], media_type=found[1])

    for path, (name, kind) in PAGE_FILES.items():
        app.get(path, include_in_schema=False)(_send_file(read_page_file(name), kind))


def _send_file(body: bytes, kind: str) -> Callable[[], Any]:
    async def send() -> Response:
        return Response(body, media_type=kind)

    return send


def _add_server_status(app: FastAPI, metrics: ServerMetrics) -> None:
    @app.get("/health", tags=["server"], summary="Check that the server responds")
    async def check_health() -> Response:
        return _json_response({"status": "ok"})

    @app.get(
        "/metrics",
        tags=["server"],
        summary="Metrics of the server for Prometheus",
        response_class=PlainTextResponse,
    )
    async def show_metrics() -> Response:
        kind, text = metrics.render()
        return Response(text, media_type=kind)


def _add_error_handlers(app: FastAPI) -> None:
    """Turn FastAPI's own errors into `HttpProblem`, which the request guard sends."""

    async def reject_invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        raise describe_invalid_request(error.errors())

    async def reject_unrouted(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        headers = {}
        if error.status_code == 405:  # FastAPI names only the methods of the first route with this path
            routes = [route for route in app.routes if getattr(route, "path", None) == request.url.path]
            allowed = {method for route in routes for method in getattr(route, "methods", ())}
            headers["allow"] = ", ".join(sorted(allowed))
        remedy = "/openapi.json lists all endpoints"
        raise HttpProblem(error.status_code, str(error.detail).lower(), remedy, headers)

    app.add_exception_handler(RequestValidationError, reject_invalid)
    app.add_exception_handler(HTTPException, reject_unrouted)
