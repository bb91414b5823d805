"""The best items of every user as one Parquet file, written while it is computed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from verfedgnn.core.errors import RunError
from verfedgnn.serving.catalogue import FEDERATED, Catalogue
from verfedgnn.serving.explain import merged, shown
from verfedgnn.serving.ranker import Wish

GROUP = 4096
"""Users of one row group."""
AT_ONCE = 64
"""Users scored at a time."""
SCHEMA = pa.schema(
    [("user", pa.string()), ("place", pa.int32()), ("item", pa.string()), ("title", pa.string()), ("party", pa.string()),
     ("score", pa.float32())]
)  # fmt: skip


def write_table(
    catalogue: Catalogue, path: Path, k: int, *, watch: Callable[[int], None] = lambda done: None
) -> int:
    """The k best items of each user, as `Run.recommend` finds them, into a file that is whole or not there; returns its rows."""
    part = path.with_name(f".{path.name}.part")
    ids, rows = catalogue.run.parties[0].ratings.user_ids, 0
    try:
        with pq.ParquetWriter(part, SCHEMA, compression="zstd") as writer:
            for start in range(0, len(ids), GROUP):
                columns: dict[str, list[object]] = {name: [] for name in SCHEMA.names}
                group = range(start, min(start + GROUP, len(ids)))
                for first in range(group.start, group.stop, AT_ONCE):
                    _score(catalogue, range(first, min(first + AT_ONCE, group.stop)), k, columns)
                rows += len(columns["user"])
                writer.write_table(pa.table(columns, SCHEMA), row_group_size=max(1, len(columns["user"])))
                watch(group.stop)
        part.replace(path)
    except OSError as error:
        raise RunError(
            f"cannot write {path}: {error.strerror or error}; choose another --out, or make room"
        ) from None
    finally:
        part.unlink(missing_ok=True)
    return rows


def _score(catalogue: Catalogue, users: range, k: int, columns: dict[str, list[object]]) -> None:
    parties = range(len(catalogue.parties))
    ids = catalogue.run.parties[0].ratings.user_ids
    by_party = []
    for p in parties:
        shelf, party = catalogue.shelves[FEDERATED][p], catalogue.parties[p]
        by_party.append(shelf.best([Wish(shelf.users[user], k, party.seen(user)) for user in users]))
    for number, user in enumerate(users):
        for place, (p, row, score) in enumerate(merged(parties, [found[number] for found in by_party], k), 1):
            table = catalogue.parties[p].table
            title = "" if table.titles is None else str(table.titles[row])
            entry = (
                str(ids[user]),
                place,
                str(table.item_ids[row]),
                title,
                catalogue.parties[p].name,
                shown(catalogue, p, score),
            )
            for name, value in zip(SCHEMA.names, entry, strict=True):
                columns[name].append(value)
