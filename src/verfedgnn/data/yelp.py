"""Reader of Yelp's open data set: JSON lines of reviews, and of businesses for names.

Review texts are never kept.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from numpy.typing import NDArray

from verfedgnn.core.errors import DataError
from verfedgnn.data.ids import TEXT, look_up
from verfedgnn.data.ratings import Ratings, make_ratings
from verfedgnn.data.text_files import open_stream, read_first_bytes, reading
from verfedgnn.data.time_parsing import parse_times

_BLOCK = 16 << 20


def read_yelp(
    path: Path,
    businesses: Path | None = None,
    *,
    name: str = "yelp",
    duplicates: str = "last",
    missing: str = "error",
) -> Ratings:
    """Read reviews as ratings of businesses (1 to 5 stars).

    By default the latest of several reviews of a business by one user counts.
    """
    read_first_bytes(path)
    table = _read(path, {"user_id": TEXT, "business_id": TEXT, "stars": pa.float64(), "date": TEXT})
    where: Callable[[int], str] | None = None
    time: NDArray[np.int64] | None = None
    notes: tuple[str, ...] = ()
    if table["date"].null_count < table.num_rows:
        time, notes = parse_times(_dates(table["date"], path))
    if time is not None:
        order = pc.sort_indices(pa.array(time))
        table = table.take(order)
        time = time[order.to_numpy()]
        where = lambda row: f"line {order[row].as_py() + 1} of {path.name}"  # noqa: E731
    ratings = make_ratings(
        table["user_id"],
        table["business_id"],
        table["stars"],
        time=time,
        scale=(1, 5),
        name=name,
        duplicates=duplicates,
        missing=missing,
        notes=notes,
        where=where or (lambda row: f"line {row + 1} of {path.name}"),
    )
    if businesses is None:
        return ratings
    about = _read(businesses, dict.fromkeys(("business_id", "name", "categories", "city"), TEXT))
    category = pc.list_element(pc.split_pattern(pc.fill_null(about["categories"], ""), ", "), 0)
    ids = about["business_id"]
    return replace(
        ratings,
        titles=look_up(ratings.item_ids, ids, about["name"]),
        columns={
            "category": look_up(ratings.item_ids, ids, category),
            "city": look_up(ratings.item_ids, ids, about["city"]),
        },
    )


def _read(path: Path, fields: dict[str, pa.DataType]) -> pa.Table:
    with reading(path), open_stream(path) as stream:
        try:
            return pa.json.read_json(
                stream,
                read_options=pa.json.ReadOptions(block_size=_BLOCK),
                parse_options=pa.json.ParseOptions(
                    explicit_schema=pa.schema(list(fields.items())), unexpected_field_behavior="ignore"
                ),
            )
        except pa.ArrowInvalid as error:
            reason = str(error).splitlines()[0][:120]
            raise DataError(
                f"{path} does not hold Yelp's JSON lines ({reason}); each line needs {', '.join(fields)}"
            ) from error


def _dates(column: pa.ChunkedArray, path: Path) -> pa.ChunkedArray:
    try:
        return pc.cast(column, pa.timestamp("s"))
    except pa.ArrowInvalid as error:
        reason = str(error).splitlines()[0][:120]
        raise DataError(
            f"{path} has an invalid date ({reason}); write dates as 2018-07-07 22:09:11"
        ) from error
