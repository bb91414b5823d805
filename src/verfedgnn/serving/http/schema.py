"""What goes in and out over HTTP, as types: they check requests, and describe answers in /openapi.json."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

MOST = 1000
"""Items of one answer."""
MOST_RATINGS = 10_000
"""Ratings of one newcomer."""
MOST_USERS = 1000
"""Users of one request."""
MOST_ANSWERS = 50_000
"""Items of one request's answers, over all its users; some 7 MB."""
Id = Annotated[str, Field(min_length=1, max_length=1000)]
Where = Annotated[dict[str, str], Field(max_length=10)]


class Given(BaseModel):
    """What a client sends: nothing that is not declared."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class GivenRating(Given):
    """One rating of a newcomer."""

    item: Id
    """The item's id, as in the data."""
    rating: float
    """On the party's scale."""
    party: Id | None = None
    """Whose item; needed only where several parties have the id."""


class Newcomer(Given):
    """A user who was not in training."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"ratings": [{"item": "50", "rating": 5}, {"item": "181", "rating": 4}], "k": 5, "why": 3}
            ]
        }
    )
    ratings: Annotated[list[GivenRating], Field(max_length=MOST_RATINGS)]
    """Their own ratings; none: what an average user would like."""
    k: Annotated[int, Field(ge=1, le=MOST)] = 10
    """How many items."""
    party: Id | None = None
    """Only this party's items."""
    where: Where = {}
    """Only items with these values, by item column."""
    why: Annotated[int, Field(ge=0, le=20)] = 0
    """How many of the user's own items to name as reasons for each item."""


class Many(Given):
    """Several users who were in training."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"users": ["17", "18"], "k": 5}]})
    users: Annotated[list[Id], Field(min_length=1, max_length=MOST_USERS)]
    """Their ids, as in the data."""
    k: Annotated[int, Field(ge=1, le=MOST)] = 10
    """How many items for each; users times k is at most 50,000."""
    party: Id | None = None
    """Only this party's items."""
    model: Literal["federated", "alone"] = "federated"
    """Trained together, or by each party alone."""
    where: Where = {}
    """Only items with these values, by item column."""


class Cause(BaseModel):
    """A cause and a remedy."""

    cause: str
    remedy: str


class Item(BaseModel):
    """An item."""

    item: str
    title: str
    party: str
    columns: dict[str, str]


class Reason(Item):
    """One of the user's own items that speaks for a recommended one."""

    rating: float
    adds: float
    """Its part of `taste`."""


class Why(BaseModel):
    """score = average + habit + taste + rest, before the score is cut to the scale."""

    model_config = ConfigDict(use_attribute_docstrings=True)
    average: float
    """What the average user would get."""
    habit: float
    """What the user's own ratings add to the average item, by folding in."""
    taste: float
    """What they add to this item beyond that."""
    rest: float | None = None
    """What the trained model knows besides."""
    because: list[Reason]


class Recommended(Item):
    """A recommended item."""

    model_config = ConfigDict(use_attribute_docstrings=True)
    score: float
    """The predicted rating; of a ranking, the item's share in the party's softmax."""
    why: Why | None = None


class Recommendations(BaseModel):
    """The answer to a question for recommendations."""

    recommendations: list[Recommended]


class Answer(BaseModel):
    """One of several users' recommendations, or why there are none."""

    user: str
    recommendations: list[Recommended] | None = None
    error: Cause | None = None


class Answers(BaseModel):
    """A line for each user, in the order of the request."""

    answers: list[Answer]


class SimilarItem(Item):
    """An item that is like another one."""

    similarity: float


class Similar(BaseModel):
    """Items that are like another one."""

    similar: list[SimilarItem]


class Pair(Item):
    """What a user would give an item."""

    score: float
    rated: float | None
    """What they gave, where the run knows it."""


class Error(BaseModel):
    """The answer to a request that cannot be answered."""

    error: Cause
