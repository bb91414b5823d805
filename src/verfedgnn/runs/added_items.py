"""Items that a party added to a run after its training: a file with their ratings and vectors.

    RUN/added/PARTY.jsonl

A line is one item: its id, title and columns, the ratings that it has so far, and its vector in each model of the run. What an
item may hold is checked when it is added and again when it is read. A line that does not pass is left out with a warning, so
that one item cannot keep a run from being read.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError

from verfedgnn.core.errors import DataError, RunWarning
from verfedgnn.core.files import check_links, lock_folder, parsing, write_bytes, writing
from verfedgnn.data import TRAIN, PartyData, Ratings
from verfedgnn.data.ids import LONGEST_ID, LONGEST_TITLE, StrArray, find_positions
from verfedgnn.data.value_parsing import LATEST_SECONDS
from verfedgnn.runs.party_model import PartyModel

ADDED = "added"
"""Folder in a run's folder with the items that were added after the training."""
MOST_COLUMNS = 100
_NO_ZERO = r"^[^\x00]*$"
Id = Annotated[str, Field(min_length=1, max_length=LONGEST_ID, pattern=_NO_ZERO)]
"""An id as in tables of ratings. Longer texts would widen the ids of all items, and NumPy drops zeros at their end."""
Text = Annotated[str, Field(max_length=LONGEST_TITLE, pattern=_NO_ZERO)]
"""A title or the value of an item column."""
Seconds = Annotated[int, Field(ge=0, le=LATEST_SECONDS)]
"""A time in seconds since 1970."""
Number = Annotated[float, Field(ge=-1e30, le=1e30)]
"""A rating or a part of a vector; finite, also in 32 bits."""


@dataclass(frozen=True)
class AddedItem:
    """An item that was not in training."""

    item: Id
    """Id of the item, which no item of the training has."""
    title: Text = ""
    columns: Annotated[Mapping[Id, Text], Field(max_length=MOST_COLUMNS)] = field(default_factory=dict)
    ratings: Mapping[Id, tuple[Number, Seconds | None]] = field(default_factory=dict)
    """Rating and its time, None if unknown, by the id of a user who was in training."""
    vectors: Mapping[str, list[Number]] = field(default_factory=dict)
    """Vector in each model of the run, by the model's folder in the run folder, such as `lists/model`."""


def added_file(run: Path, party_file: str) -> Path:
    """Return the file of a party's added items; `party_file` is the party's name among files."""
    return run / ADDED / f"{party_file}.jsonl"


_ITEM = TypeAdapter(AddedItem)


def check_item(item: AddedItem) -> None:
    """Raise `DataError` if an item holds what would be left out when it is read."""
    try:
        _ITEM.validate_python(asdict(item))
    except ValidationError as error:
        raise DataError(f"item '{item.item[:LONGEST_ID]}': {_describe(error)}; correct it") from None


def _describe(error: ValidationError) -> str:
    """Describe the first mistake without quoting a value, which may be a user's."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{first['loc'][0] if first['loc'] else 'the line'}: {first['msg'][:1].lower()}{first['msg'][1:]}"


def read_added(file: Path) -> dict[str, AddedItem]:
    """Return the added items by id, in the order in which they were added first; warn of lines that cannot be used."""
    found: dict[str, AddedItem] = {}
    with parsing(str(file), "check its permissions"):
        lines = file.read_bytes().split(b"\n") if file.is_file() else []
    for number, line in enumerate(filter(None, lines), 1):
        try:
            item = _ITEM.validate_json(line)
            found[item.item] = item
        except ValidationError as error:
            text = f"line {number} of {file} is left out ({_describe(error)}); add the item again"
            warnings.warn(text, RunWarning, stacklevel=2)
    return found


def lock_added(run: Path) -> AbstractContextManager[None]:
    """Lock the added items of a run while they are read and changed; wait for others who do the same."""
    check_links(run)  # the folder of added items may be a link itself
    return lock_folder(run / ADDED, wait=True)


def rewrite_added(file: Path, items: Iterable[AddedItem]) -> None:
    """Replace the file by one with these items only, or remove it if there are none; after a kill, it is old or new."""
    lines = b"".join(json.dumps(asdict(item), allow_nan=False).encode() + b"\n" for item in items)
    with writing(file):
        if lines:
            write_bytes(file, lines)
        else:
            file.unlink(missing_ok=True)


def extend_party(
    party: PartyData, part: NDArray[np.int8], items: Mapping[str, AddedItem]
) -> tuple[PartyData, NDArray[np.int8]]:
    """Return a party's table and parts with added items at the end; their ratings are in the training part."""
    table, described = party.ratings, list(items.values())
    rows = find_positions(
        np.array([user for item in described for user in item.ratings], str), table.user_ids
    )
    newest = 0 if table.time is None else int(table.time.max(initial=0))
    given = [
        (place, stars, newest if at is None else at)
        for place, item in enumerate(described, table.n_items)
        for stars, at in item.ratings.values()
    ]
    fields = [("item", table.item.dtype), ("rating", table.rating.dtype), ("time", np.int64)]
    more = np.array(given, fields)[rows >= 0]
    titles = [item.title for item in described]
    with_titles = table.titles is not None or any(titles)
    ratings = replace(
        table,
        user=np.append(table.user, rows[rows >= 0].astype(table.user.dtype)),
        item=np.append(table.item, more["item"]),
        rating=np.append(table.rating, more["rating"]),
        time=None if table.time is None else np.append(table.time, more["time"]),
        item_ids=np.append(table.item_ids, np.array(list(items), str)),
        titles=_extend_texts(table.titles, titles, table) if with_titles else None,
        columns={
            name: _extend_texts(values, [item.columns.get(name, "") for item in described], table)
            for name, values in table.columns.items()
        },
    )
    return PartyData(party.name, ratings), np.append(part, np.full(len(more), TRAIN, np.int8))


def _extend_texts(texts: StrArray | None, more: Sequence[str], table: Ratings) -> StrArray:
    first = np.full(table.n_items, "") if texts is None else texts
    return np.concatenate([first, np.array(more, dtype=np.str_)])


def extend_model(model: PartyModel, vectors: Sequence[Sequence[float]]) -> PartyModel:
    """Return a model with the vectors of added items at the end."""
    more = torch.tensor(vectors, dtype=model.items.dtype).reshape(len(vectors), model.items.shape[1])
    scores = model.item_scores
    return replace(
        model,
        items=torch.cat([model.items, more]),
        embeddings=torch.cat(
            [model.embeddings, model.embeddings.new_zeros((len(vectors), model.embeddings.shape[1]))]
        ),
        item_scores=None if scores is None else replace(scores, items=scores.items + len(vectors)),
    )
