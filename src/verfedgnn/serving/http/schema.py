"""Types of requests and responses: they validate requests and describe the API in /openapi.json."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from verfedgnn.runs.added_items import MOST_COLUMNS, Id, Number, Seconds, Text

MAX_ITEMS = 1000
"""Maximum number of items per response."""
MAX_RATINGS = 10_000
"""Maximum number of ratings of one newcomer."""
MAX_USERS = 1000
"""Maximum number of users per batch request."""
MAX_BATCH_ITEMS = 50_000
"""Maximum number of items per batch response, over all users; about 7 MB."""
Filters = Annotated[dict[str, str], Field(max_length=10)]


class StrictRequest(BaseModel):
    """A request body that rejects unknown fields."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


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
        json_schema_extra={
            "examples": [
                {"ratings": [{"item": "50", "rating": 5}, {"item": "181", "rating": 4}], "k": 5, "why": 3}
            ]
        }
    )
    ratings: Annotated[list[NewcomerRating], Field(max_length=MAX_RATINGS)]
    """The user's ratings; an empty list returns recommendations for the average user."""
    user: Id | None = None
    """Id of the user; if it is known, the ratings are added to those that the server has."""
    k: Annotated[int, Field(ge=1, le=MAX_ITEMS)] = 10
    """Maximum number of items."""
    party: Id | None = None
    """Party whose items are recommended; all by default."""
    where: Filters = {}
    """Filters by item column, such as {"category": "book"}."""
    why: Annotated[int, Field(ge=0, le=20)] = 0
    """Maximum number of items the user liked that are named as reasons for each item."""


class BatchRequest(StrictRequest):
    """A request for the recommendations of several users who were in training."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"users": ["17", "18"], "k": 5}]})
    users: Annotated[list[Id], Field(min_length=1, max_length=MAX_USERS)]
    """Ids of the users, as in the data."""
    k: Annotated[int, Field(ge=1, le=MAX_ITEMS)] = 10
    """Maximum number of items per user; users times k must not exceed 50,000."""
    party: Id | None = None
    """Party whose items are recommended; all by default."""
    model: Literal["federated", "alone"] = "federated"
    """Model trained by all parties together, or by each party alone."""
    where: Filters = {}
    """Filters by item column, such as {"category": "book"}."""


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
    columns: Annotated[dict[Id, Text], Field(max_length=MOST_COLUMNS)] = {}
    """Item columns, by which requests can be filtered."""
    features: Annotated[dict[Id, str | Number | list[Number] | None], Field(max_length=MOST_COLUMNS)] = {}
    """Values of the columns that the run's features have."""
    ratings: Annotated[list[FirstRating], Field(max_length=MAX_RATINGS)] = []
    """First ratings; they add to those that the item has already."""


class NewItemsRequest(StrictRequest):
    """New items of one party."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"party": "film", "items": [{"item": "new", "ratings": [{"user": "17", "rating": 5}]}]}
            ]
        }
    )
    items: Annotated[list[NewItem], Field(min_length=1, max_length=MAX_ITEMS)]
    party: Id | None = None
    """Party that offers the items; needed only if several are served."""


class AddedItemResponse(BaseModel):
    """An added item and the number of ratings that its vector is estimated from."""

    item: str
    ratings: int


class NewItemsResponse(BaseModel):
    """The added items; they are served within seconds."""

    model_config = ConfigDict(use_attribute_docstrings=True)
    items: list[AddedItemResponse]
    unknown_users: int
    """Number of ratings that were left out, because their users were not in training."""


class ErrorDetail(BaseModel):
    """The cause of an error and its remedy."""

    cause: str
    remedy: str


class ErrorResponse(BaseModel):
    """The response to a request that cannot be answered."""

    error: ErrorDetail


class ItemResponse(BaseModel):
    """An item of a party's catalogue."""

    item: str
    title: str
    party: str
    columns: dict[str, str]


class Reason(ItemResponse):
    """An item that the user liked and that contributes to a recommendation."""

    model_config = ConfigDict(use_attribute_docstrings=True)
    rating: float
    adds: float
    """Contribution of this rating to `taste` and `items`."""


class Explanation(BaseModel):
    """The parts of a score: score = average + habit + taste + items + rest, before the softmax, or before a rating is clipped."""

    model_config = ConfigDict(use_attribute_docstrings=True)
    average: float
    """Score for the average user."""
    habit: float
    """Contribution of the user's own ratings to the average item."""
    taste: float
    """Contribution of the user's own ratings to this item beyond `habit`."""
    items: float
    """Contribution of the user's items at the same party, through the weights between items (EASE)."""
    rest: float
    """Contribution of what the trained model knows beyond the user's own ratings."""
    average_rank: int
    """Rank of the item for the average user, among the items of the party that the user has not rated and that match the filters."""
    because: list[Reason]
    """The liked items that contribute most."""


class RecommendedItem(ItemResponse):
    """A recommended item."""

    model_config = ConfigDict(use_attribute_docstrings=True)
    score: float
    """What orders the list: how likely this is the user's next liked item, or the predicted rating if the run has no lists."""
    rating: float | None
    """Predicted rating, within the party's scale; null if the run predicts no ratings."""
    why: Explanation | None = None


class RecommendationsResponse(BaseModel):
    """The recommendations for one user."""

    recommendations: list[RecommendedItem]


class BatchAnswer(BaseModel):
    """The recommendations for one user of a batch request, or the error."""

    user: str
    recommendations: list[RecommendedItem] | None = None
    error: ErrorDetail | None = None


class BatchResponse(BaseModel):
    """The answers to a batch request, in the order of its users."""

    answers: list[BatchAnswer]


class SimilarItem(ItemResponse):
    """An item that is similar to another one."""

    similarity: float


class SimilarResponse(BaseModel):
    """The items most similar to another one."""

    similar: list[SimilarItem]


class PredictionResponse(ItemResponse):
    """The prediction for a user and an item."""

    model_config = ConfigDict(use_attribute_docstrings=True)
    score: float
    """How likely this is the user's next liked item at the party, or the predicted rating if the run has no lists."""
    rating: float | None
    """Predicted rating, within the party's scale; null if the run predicts no ratings."""
    rated: float | None
    """Rating that the user gave, if the run contains it."""
