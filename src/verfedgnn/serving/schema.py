"""Types of requests, responses and errors: they validate requests and describe the API in /openapi.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, model_validator
from starlette.responses import Response

from verfedgnn.runs.added_items import MOST_COLUMNS, Id, Number, Seconds, Text
from verfedgnn.serving.split_test import ModelName
from verfedgnn.serving.user_lists import RecommendedItem, SimilarItem

MAX_ITEMS = 1000
"""Maximum number of items per response."""
MAX_RATINGS = 10_000
"""Maximum number of ratings of one newcomer."""
MAX_FILTERS = 10
"""Maximum number of item columns by which a request filters."""


class HttpProblem(Exception):
    """A request that cannot be answered: a status, a cause and a remedy."""

    def __init__(
        self, status: int, cause: str, remedy: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(cause)
        self.status, self.cause, self.remedy, self.headers = status, cause, remedy, headers

    def response(self) -> Response:
        """Return the problem as the response to a request."""
        body = {"error": {"cause": self.cause, "remedy": self.remedy}}
        return Response(orjson.dumps(body), self.status, self.headers, "application/json")


def describe_invalid(error: Mapping[str, Any], hidden: Sequence[str]) -> str:
    """Return where something given is wrong, without the `hidden` parts of the place, and why, from an error of pydantic."""
    where = ".".join(str(part) for part in error["loc"] if part not in hidden)
    return f"{where or 'the request'}: {error['msg'][:1].lower()}{error['msg'][1:]}"


def _check_size(values: Any) -> Any:
    """Refuse a large object at once. Each of its entries could become an error of its own, and millions of errors stop a server."""
    if isinstance(values, dict) and len(values) > MOST_COLUMNS:
        raise ValueError(f"there are more than {MOST_COLUMNS} fields")
    return values


class StrictRequest(BaseModel):
    """A request body that rejects unknown fields. Its lists fail at their first error."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _check_fields(cls, values: Any) -> Any:
        return _check_size(values)


class NewcomerRating(StrictRequest):
    """One rating of a newcomer."""

    item: Id
    """Id of the item, as in the data."""
    rating: Number
    """Rating on the party's scale."""
    party: Id | None = None
    """Party that offers the item; needed only if several parties use the same id."""


class Newcomer(StrictRequest):
    """A user with ratings that the run does not hold: a newcomer, or a known user who has rated more since."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"ratings": [{"item": "50", "rating": 5}], "k": 5, "why": 3}]}
    )
    ratings: Annotated[list[NewcomerRating], Field(max_length=MAX_RATINGS), FailFast()]
    """The user's ratings; an empty list returns recommendations for the average user."""
    k: Annotated[int, Field(ge=1, le=MAX_ITEMS)] = 10
    """Maximum number of items."""
    party: Id | None = None
    """Party whose items are recommended; all by default."""
    where: Annotated[dict[Id, Text], Field(max_length=MAX_FILTERS), BeforeValidator(_check_size)] = {}
    """Filters by item column, such as {"category": "book"}."""
    user: Id | None = None
    """Id of the user; if it is known, the ratings are added to those that the server has."""
    why: Annotated[int, Field(ge=0, le=20)] = 0
    """Maximum number of items the user liked that are named as reasons for each item."""


class FirstRating(StrictRequest):
    """One rating of a new item."""

    user: Id
    """Id of the user, as in the data."""
    rating: Number
    """Rating on the party's scale."""
    time: Seconds | None = None
    """Seconds since 1970; with times, the likes per time on offer say how popular the item is."""


class NewItem(StrictRequest):
    """An item that was not in training."""

    item: Id
    """Id under which the item is recommended from now on."""
    title: Text = ""
    columns: Annotated[dict[Id, Text], Field(max_length=MOST_COLUMNS), BeforeValidator(_check_size)] = {}
    """Item columns, by which requests can be filtered."""
    ratings: Annotated[list[FirstRating], Field(max_length=MAX_RATINGS), FailFast()] = []
    """First ratings; they add to those that the item has already."""


class NewItemsRequest(StrictRequest):
    """New items of one party."""

    items: Annotated[list[NewItem], Field(min_length=1, max_length=MAX_ITEMS), FailFast()]
    party: Id | None = None
    """Party that offers the items; needed only if several are served."""


class Answer(BaseModel):
    """A part of a response whose fields are described in /openapi.json."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class AddedItemResponse(Answer):
    """An added item and the number of ratings that its vector is estimated from."""

    item: str
    ratings: int


class NewItemsResponse(Answer):
    """The added items; they are served within seconds."""

    items: list[AddedItemResponse]
    unknown_users: int
    """Number of ratings that were left out, because their users were not in training."""


class ErrorResponse(Answer):
    """The response to a request that cannot be answered."""

    error: dict[Literal["cause", "remedy"], str]


class RecommendationsResponse(Answer):
    """The recommendations for one user."""

    recommendations: list[RecommendedItem]
    bucket: ModelName | None = None
    """Bucket of the user in a split test, for the log of clicks. It is absent without a split test, for a newcomer without id, and
    if the request names a model."""
    own_models: list[str] | None = None
    """Parties whose own models made this list, since the federated one was not better on their validation part; absent if none."""


class SimilarResponse(Answer):
    """The items most similar to another one."""

    similar: list[SimilarItem]
