"""The question that is asked most, a known user's best items, without what a framework does around an endpoint.

Only what is plain is answered here: known parameters, each once, each right. Everything else (reasons, filters, whatever is
wrong) goes on to the endpoint, so that there is one place for it; what is answered here, the endpoint would answer in the same
words.
"""

from __future__ import annotations

from urllib.parse import parse_qsl

from starlette.types import ASGIApp, Receive, Scope, Send

from verfedgnn.serving.catalogue import FEDERATED, Catalogue
from verfedgnn.serving.explain import merged, recommendations
from verfedgnn.serving.http import lookup as ask
from verfedgnn.serving.http.batching import Batcher
from verfedgnn.serving.http.http_problems import Problem
from verfedgnn.serving.http.schema import MOST

KNOWN = {"user", "k", "party", "model"}
Asked = tuple[str, int, list[int], int]
"""Model, row of the user, parties, how many."""


class Quick:
    """Stands before the endpoints."""

    path = "/v1/recommendations"
    """As the route is called in the figures."""

    def __init__(self, app: ASGIApp, catalogue: Catalogue, batcher: Batcher) -> None:
        self.app, self._catalogue, self._batcher = app, catalogue, batcher

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        asked = self._read(scope)
        if asked is None:
            await self.app(scope, receive, send)
            return
        scope["route"], (model, row, parties, k) = self, asked
        found = await self._batcher.ask(ask.of_user(self._catalogue, model, row, parties, k, {}))
        body = recommendations(self._catalogue, merged(parties, found, k)).encode()
        headers = [(b"content-length", str(len(body)).encode()), (b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _read(self, scope: Scope) -> Asked | None:
        """What is asked; None: not plain."""
        if scope["type"] != "http" or scope["path"] != self.path or scope["method"] != "GET":
            return None
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = dict(pairs)
        k, model = given.get("k", "10"), given.get("model", FEDERATED)
        if len(given) < len(pairs) or not given.keys() <= KNOWN or model not in self._catalogue.shelves:
            return None
        if not (k.isascii() and k.isdigit() and len(k) <= len(str(MOST)) and 1 <= int(k) <= MOST):
            return None
        try:
            parties = ask.party_rows(self._catalogue, given.get("party"))
            return model, ask.user_row(self._catalogue, given.get("user", "")), parties, int(k)
        except Problem:
            return None
