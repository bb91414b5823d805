"""New items that arrive in a request: they are stored in the run folder, and every worker notices them there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from verfedgnn.core.errors import DataError
from verfedgnn.runs.added_items import AddedItem
from verfedgnn.runs.run import Run
from verfedgnn.serving.http.http_problems import HttpProblem
from verfedgnn.serving.http.schema import NewItemsRequest
from verfedgnn.upkeep.new_items import NewItems


def add_new_items(folder: Path, party: str, request: NewItemsRequest) -> dict[str, Any]:
    """Add the items of a request to the run in `folder`, and return what was added."""
    items = {
        item.item: AddedItem(
            item.item,
            item.title,
            item.columns,
            {rating.user: (rating.rating, rating.time) for rating in item.ratings},
            item.features,
        )
        for item in request.items
    }
    if len(items) < len(request.items):
        raise HttpProblem(400, "the request has an item twice", "give each item once, with all its ratings")
    try:
        report = NewItems(folder, Run.load(folder, added=False), party).add(items)
    except DataError as error:
        cause, _, remedy = str(error).partition("; ")
        raise HttpProblem(400, cause, remedy or "correct the request") from None
    return {
        "items": [{"item": item.item, "ratings": len(item.ratings)} for item in report.items],
        "unknown_users": report.unknown_users,
    }
