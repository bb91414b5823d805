"""A shortcut for the most frequent request, the recommendations of a known user, that bypasses FastAPI's request handling.

It answers only requests that are valid and simple: known parameters, each given once, without explanations,
filters or newer ratings. All
others go to the endpoint, so errors are described in one place. Both give the same response. results/serving.md has the
throughput with and without it.
"""

from __future__ import annotations

from urllib.parse import parse_qsl

import orjson
from starlette.types import ASGIApp, Receive, Scope, Send

from verfedgnn.serving.catalogue import FEDERATED, Catalogue
from verfedgnn.serving.explain import describe_recommendations, merge_rankings
from verfedgnn.serving.http import lookup
from verfedgnn.serving.http.batching import Batcher
from verfedgnn.serving.http.coverage import ServedCoverage
from verfedgnn.serving.http.http_problems import HttpProblem
from verfedgnn.serving.http.schema import MAX_ITEMS
from verfedgnn.serving.user_profile import ServedUser, make_queries, profile_user

PARAMETERS = {"user", "k", "party", "model"}
SimpleRequest = tuple[str, ServedUser, list[int], int]
"""Model, user, parties, and number of items."""


class FastPath:
    """ASGI middleware that answers simple requests for recommendations itself."""

    path = "/v1/recommendations"
    """Route of the requests, as it appears in the metrics."""

    def __init__(
        self, app: ASGIApp, catalogue: Catalogue, batcher: Batcher, coverage: ServedCoverage
    ) -> None:
        self.app = app
        self._coverage = coverage
        self._catalogue = catalogue
        self._batcher = batcher

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a simple request, or pass any other request on."""
        simple = self._parse(scope)
        if simple is None:
            await self.app(scope, receive, send)
            return
        scope["route"] = self
        model, user, parties, k = simple
        profile = profile_user(self._catalogue, model, user, parties)
        ranked = await self._batcher.rank(make_queries(self._catalogue, model, profile, k, {}))
        best = merge_rankings(self._catalogue, profile, ranked, k)
        self._coverage.note(best)
        items = describe_recommendations(self._catalogue, model, profile, best)
        body = orjson.dumps({"recommendations": items})
        headers = [(b"content-length", str(len(body)).encode()), (b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _parse(self, scope: Scope) -> SimpleRequest | None:
        """Return the parsed request, or None if it is not simple."""
        if scope["type"] != "http" or scope["path"] != self.path or scope["method"] != "GET":
            return None
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = dict(pairs)
        k, model = given.get("k", "10"), given.get("model", FEDERATED)
        if len(given) < len(pairs) or not given.keys() <= PARAMETERS or model not in self._catalogue.rankers:
            return None
        if not (k.isascii() and k.isdigit() and len(k) <= len(str(MAX_ITEMS)) and 1 <= int(k) <= MAX_ITEMS):
            return None
        try:
            parties = lookup.find_parties(self._catalogue, given.get("party"), scope["access"].parties)
            user = lookup.find_user(self._catalogue, given.get("user", ""), scope["access"].parties)
        except HttpProblem:
            return None
        if user.newer or user.features:  # folding in takes a thread of its own
            return None
        return model, user, parties, int(k)
