"""The HTTP interface: endpoints look up and describe, scores come from the batcher's thread, slower answers from others."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from importlib import resources
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from verfedgnn.core.version import installed_version
from verfedgnn.serving.catalogue import FEDERATED, Catalogue
from verfedgnn.serving.explain import liked, merged, reasons, recommendations, shown, similar
from verfedgnn.serving.http import lookup as ask
from verfedgnn.serving.http.batch_endpoint import answer_many
from verfedgnn.serving.http.batching import Batcher
from verfedgnn.serving.http.fast_path import Quick
from verfedgnn.serving.http.http_problems import Problem, invalid
from verfedgnn.serving.http.request_guard import Guard
from verfedgnn.serving.http.schema import MOST, Answers, Error, Many, Newcomer, Pair, Recommendations, Similar
from verfedgnn.serving.http.server_metrics import Figures
from verfedgnn.serving.ranker import Wish
from verfedgnn.serving.run_overview import overview

UserId = Annotated[
    str, Query(description="The user's id, as in the data.", min_length=1, max_length=1000, examples=["17"])
]
ItemId = Annotated[
    str, Query(description="The item's id, as in the data.", min_length=1, max_length=1000, examples=["50"])
]
Party = Annotated[str | None, Query(description="Only this party's items; unset: all.", max_length=1000)]
Count = Annotated[int, Query(description="How many items.", ge=1, le=MOST)]
Model = Annotated[
    Literal["federated", "alone"], Query(description="Trained together, or by each party alone.")
]
Reasons = Annotated[
    int, Query(description="How many of the user's own items to name as reasons.", ge=0, le=20)
]
BY_COLUMN = {("GET", "/v1/recommendations"), ("GET", "/v1/similar")}
"""Where item columns are parameters, too; these look at them themselves."""
PAGE = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/draw.js": ("draw.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": Error, "description": "The request is not understood"},
    401: {"model": Error, "description": "The key is missing or wrong"},
    404: {"model": Error, "description": "There is no such user, item, party or model"},
}


def _said(text: str) -> Response:
    return Response(text, media_type="application/json")


def _json(value: Any) -> Response:
    return _said(json.dumps(value, separators=(",", ":")))


async def _only_known(request: Request) -> None:
    """A parameter that nobody reads is a mistake, not something to leave out silently."""
    known = {field.alias for field in request.scope["route"].dependant.query_params}
    by_column = (request.method, request.url.path) in BY_COLUMN
    if not by_column and not known.issuperset(request.query_params):
        raise Problem(400, "there is no such parameter", f"parameters: {', '.join(sorted(known)) or 'none'}")


def make_app(catalogue: Catalogue, *, key: str | None = None) -> FastAPI:
    """The application that serves a catalogue; with a key, only to those who send it."""
    figures = Figures()
    batcher = Batcher(figures.batch)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        await run_in_threadpool(lambda: catalogue.places)  # the first newcomer should not wait for it
        yield
        batcher.close()

    app = FastAPI(
        dependencies=[Depends(_only_known)],
        title="verfedgnn",
        version=installed_version(),
        description="Recommendations from a run. With a key set, send it as `Authorization: Bearer KEY`.",
        docs_url=None,
        redoc_url=None,
        lifespan=life,
        responses=ERRORS,
    )
    app.add_middleware(Quick, catalogue=catalogue, batcher=batcher)
    app.add_middleware(Guard, key=key, figures=figures)
    _handle_errors(app)
    _add_questions(app, catalogue, batcher)
    _add_page(app, catalogue)

    @app.get("/health", tags=["server"], summary="Whether the server answers")
    async def health() -> Response:
        return _json({"status": "ok"})

    @app.get("/metrics", tags=["server"], summary="Figures of the server, for Prometheus")
    async def metrics() -> Response:
        kind, text = figures.text()
        return Response(text, media_type=kind)

    return app


def _add_questions(app: FastAPI, catalogue: Catalogue, batcher: Batcher) -> None:
    @app.get(
        "/v1/recommendations",
        response_model=Recommendations,
        tags=["recommend"],
        summary="The best items for a user",
    )
    async def recommend(
        request: Request,
        user: UserId,
        k: Count = 10,
        party: Party = None,
        model: Model = "federated",
        why: Reasons = 0,
    ) -> Response:
        """Items the user has not rated, best first. Any item column filters: `&category=book`."""
        row, parties = ask.user_row(catalogue, user), ask.party_rows(catalogue, party)
        wanted = ask.where(catalogue, request.query_params, ("user", "k", "party", "model", "why"))
        found = await batcher.ask(ask.of_user(catalogue, model, row, parties, k, wanted))
        best = merged(parties, found, k)
        rated = catalogue.trained(row, parties) if why else []
        given = await run_in_threadpool(reasons, catalogue, model, rated, best, why) if why else ()
        return _said(recommendations(catalogue, best, given))

    @app.post(
        "/v1/recommendations",
        response_model=Recommendations,
        tags=["recommend"],
        summary="The best items for a newcomer",
    )
    async def fold(new: Newcomer) -> Response:
        """Items for somebody who was not in training, from their own ratings alone. Nothing of it is kept."""
        parties = ask.party_rows(catalogue, new.party)
        wanted = ask.where(catalogue, new.where, ())
        given = await run_in_threadpool(ask.newcomer, catalogue, new.ratings)
        used = liked(catalogue, given)
        vectors = await run_in_threadpool(ask.folded, catalogue, used)
        shelves, seen = ask.shelves(catalogue, FEDERATED), {rated.party: rated.items for rated in given}
        none = ask.no_items()
        questions = [
            (shelves[p], Wish(vectors[p], new.k, seen.get(p, none), catalogue.parties[p].mask(wanted)))
            for p in parties
        ]
        best = merged(parties, await batcher.ask(questions), new.k)
        why = await run_in_threadpool(reasons, catalogue, FEDERATED, used, best, new.why) if new.why else ()
        return _said(recommendations(catalogue, best, why))

    @app.post(
        "/v1/recommendations/batch",
        response_model=Answers,
        tags=["recommend"],
        summary="The best items for many users",
    )
    async def recommend_many(many: Many) -> Response:
        """As for one user, for up to 1,000. A user who was not in training is told so; the others are answered."""
        return _said(await answer_many(catalogue, batcher, many))

    @app.get("/v1/similar", response_model=Similar, tags=["recommend"], summary="Items like an item")
    async def like(
        request: Request, item: ItemId, party: Party = None, k: Count = 10, among: Party = None
    ) -> Response:
        """By the cosine of item vectors, in the space in which users differ.

        `among` names one party to look in; any item column filters: `&category=book`.
        """
        p, row = ask.item_row(catalogue, item, party)
        parties = ask.party_rows(catalogue, among)
        wanted = ask.where(catalogue, request.query_params, ("item", "party", "k", "among"))
        return _json({"similar": await run_in_threadpool(similar, catalogue, p, row, parties, k, wanted)})

    @app.get("/v1/rating", response_model=Pair, tags=["recommend"], summary="What a user would give an item")
    async def rating(user: UserId, item: ItemId, party: Party = None, model: Model = "federated") -> Response:
        """The predicted rating (of a ranking, the item's share), and the known one where there is one."""
        row, (p, column) = ask.user_row(catalogue, user), ask.item_row(catalogue, item, party)
        shelf, one = ask.shelves(catalogue, model)[p], catalogue.parties[p]
        score = shelf.pair(row, column)
        known = one.rating(row, column)
        return _json(one.describe(column) | {"score": shown(catalogue, p, score), "rated": known})


def _add_page(app: FastAPI, catalogue: Catalogue) -> None:
    about = cache(lambda: overview(catalogue))

    @app.get("/v1/run", tags=["page"], summary="What is known about the run")
    async def run() -> Response:
        return _json(await run_in_threadpool(about))

    @app.get("/v1/users", tags=["page"], summary="Users whose id starts so")
    async def users(
        starts: Annotated[str, Query(max_length=1000)] = "", party: Party = None, k: Count = 8
    ) -> Response:
        parties, ids = ask.party_rows(catalogue, party), catalogue.run.parties[0].ratings.user_ids
        found = [(row, sum(len(catalogue.parties[p].ratings_of(row)) for p in parties))
                 for row in catalogue.users.starting_with(starts, k)]  # fmt: skip
        return _json({"users": [{"user": str(ids[row]), "ratings": count} for row, count in found]})

    @app.get("/v1/history", tags=["page"], summary="What a user has rated, best first")
    async def history(user: UserId, party: Party = None, k: Count = 10) -> Response:
        row, parties = ask.user_row(catalogue, user), ask.party_rows(catalogue, party)
        rated = [(float(catalogue.parties[p].table.rating[i]), p, int(catalogue.parties[p].table.item[i]))
                 for p in parties for i in catalogue.parties[p].ratings_of(row)]  # fmt: skip
        best = sorted(rated, key=lambda entry: -entry[0])[:k]
        items = [catalogue.parties[p].describe(item) | {"rating": value} for value, p, item in best]
        return _json({"count": len(rated), "items": items})

    folder = resources.files("verfedgnn.serving") / "page"
    for path, (name, kind) in PAGE.items():
        app.get(path, include_in_schema=False)(_file((folder / name).read_bytes(), kind))


def _file(body: bytes, kind: str) -> Callable[[], Any]:
    async def send() -> Response:
        return Response(body, media_type=kind)

    return send


def _handle_errors(app: FastAPI) -> None:
    """The framework's own complaints as problems; the guard tells them."""

    async def refused(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        raise invalid(error.errors())

    async def elsewhere(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        raise Problem(error.status_code, str(error.detail).lower(), "/openapi.json lists what there is")

    app.add_exception_handler(RequestValidationError, refused)
    app.add_exception_handler(HTTPException, elsewhere)
