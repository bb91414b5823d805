"""Rows with numbered users and items, divided by users into shards that fit into memory.

Rows are stored in pieces that are sorted by shard, and a shard reads its part of every piece.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verfedgnn.core.files import write_bytes
from verfedgnn.data.event_ratings import EventWeights, rate_strength, total_weight
from verfedgnn.data.row_stream import NO_TIME, TimeCounts

_LARGEST_TIME = 9e18


def divide_users(counts: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
    """Return the first user of each shard, and the number of users at the end.

    A shard has about `rows` rows or a single user; `counts` holds each user's rows.
    """
    before = np.cumsum(counts) - counts
    shard = before // rows
    starts = np.flatnonzero(np.append(True, shard[1:] != shard[:-1]))
    return np.append(starts, len(counts)).astype(np.int64)


class ChunkFiles:
    """Chunks of rows in a folder. A chunk consists of pieces, each sorted by shard.

    A piece is the end of each shard's rows, then the rows, without the header of a NumPy file: threads read pieces, and
    parsing headers in threads can fail before Python 3.11.8 ("AST constructor recursion depth mismatch").
    """

    def __init__(self, folder: Path, starts: NDArray[np.int64], kind: np.dtype[Any]) -> None:
        self.folder = folder
        self.starts = starts
        """First user of each shard, and the number of users."""
        self.kind = kind
        """Type of a row, a structure with a field `user`."""

    def is_complete(self, chunk: int) -> bool:
        """Return whether all pieces of a chunk are written."""
        return self._mark(chunk).exists()

    def begin(self, chunk: int) -> None:
        """Remove the pieces of a chunk that was not completed."""
        for path in self.folder.glob(f"chunk-{chunk}-*.rows"):
            path.unlink()

    def complete(self, chunk: int) -> None:
        """Mark a chunk as complete."""
        write_bytes(self._mark(chunk), b"")

    def write(self, chunk: int, piece: int, rows: NDArray[Any]) -> None:
        """Write a piece."""
        shard = (np.searchsorted(self.starts, rows["user"], "right") - 1).astype(np.uint16)
        sizes = np.bincount(shard, minlength=len(self.starts) - 1)
        with (self.folder / f"chunk-{chunk}-{piece:06}.rows").open("wb") as file:
            np.append(0, np.cumsum(sizes)).astype(np.int64).tofile(file)
            rows[np.argsort(shard, kind="stable")].tofile(file)

    def read(self, shard: int) -> NDArray[Any]:
        """Return the rows of a shard in all chunks."""
        return np.concatenate(
            [self._part(path, shard) for path in sorted(self.folder.glob("chunk-*-*.rows"))]
        )

    def _part(self, path: Path, shard: int) -> NDArray[Any]:
        """Return the rows of a shard in one piece."""
        with path.open("rb") as file:
            ends = np.fromfile(file, np.int64, len(self.starts))
            file.seek(int(ends[shard]) * self.kind.itemsize, 1)
            return np.fromfile(file, self.kind, int(ends[shard + 1] - ends[shard]))

    def _mark(self, chunk: int) -> Path:
        return self.folder / f"chunk-{chunk}.complete"


@dataclass(frozen=True, eq=False)
class EventShard:
    """The ratings of a shard of events, sorted by user and item."""

    user: NDArray[np.int32]
    item: NDArray[np.int32]
    rating: NDArray[np.float32]
    time: NDArray[np.int64] | None
    time_counts: TimeCounts


def rate_shard(
    rows: NDArray[Any],
    items: int,
    kinds: Sequence[str],
    events: EventWeights,
    scale: tuple[float, float],
) -> EventShard:
    """Return the ratings of a shard's events (`event_ratings`)."""
    first = int(rows["user"].min())
    many = max(1, len(kinds))
    key = ((rows["user"].astype(np.int64) - first) * items + rows["item"]) * many + rows["kind"]
    time = rows["time"] if "time" in (rows.dtype.names or ()) else None
    order = np.argsort(key) if time is not None else None
    key = np.sort(key) if order is None else key[order]
    starts = np.flatnonzero(np.append(True, key[1:] != key[:-1]))
    count = np.diff(np.append(starts, len(key)))
    key = key[starts]
    kind = key % many
    pair = key // many
    new = np.append(True, pair[1:] != pair[:-1])
    group = np.cumsum(new) - 1
    pair = pair[new]
    strength = total_weight(count, events, group, len(pair), of_kind=lambda name: kind == kinds.index(name))
    counts = TimeCounts()
    newest = None
    if time is not None and order is not None:
        newest = _newest(time[order], starts, counts)
        newest = np.maximum.reduceat(newest, np.flatnonzero(new))
    return EventShard(
        (pair // items + first).astype(np.int32),
        (pair % items).astype(np.int32),
        rate_strength(strength, scale).astype(np.float32),
        newest,
        counts,
    )


def _newest(time: NDArray[Any], starts: NDArray[np.int64], counts: TimeCounts) -> NDArray[np.int64]:
    """Return the newest time of each group of rows, and count the groups that have one."""
    if time.dtype.kind == "f":
        latest = np.fmax.reduceat(time, starts)
        there = np.abs(latest) < _LARGEST_TIME
        newest = np.where(there, latest, 0).astype(np.int64)
        newest[~there] = NO_TIME
    else:
        newest = np.maximum.reduceat(time, starts)
        there = newest != NO_TIME
    counts.add(newest[there], int((~there).sum()))
    return newest


@dataclass(frozen=True, eq=False)
class RepeatedPairs:
    """The rows of a shard that repeat a (user, item) pair."""

    count: int
    first: tuple[int, int, int, int]
    """Positions of the first two rows of the first such pair, its user and its item."""
    dropped: NDArray[np.int64]
    """Positions of the rows to drop, in order."""
    changed: NDArray[np.int64]
    """Positions of the rows that get a mean rating."""
    means: NDArray[np.float32]


def find_repeated(
    rows: NDArray[Any], items: int, rating: NDArray[np.float32], duplicates: str
) -> RepeatedPairs | None:
    """Return what `duplicates` says about repeated pairs in a shard, None if it has none.

    `rating` holds the ratings of all shards by position.
    """
    first = int(rows["user"].min())
    key = (rows["user"].astype(np.int64) - first) * items + rows["item"]
    in_order = np.sort(key)
    if not (in_order[1:] == in_order[:-1]).any():
        return None
    position = rows["position"][np.lexsort((rows["position"], key))]
    new = np.append(True, in_order[1:] != in_order[:-1])
    last = np.append(new[1:], True)
    starts = np.flatnonzero(new & ~last)
    begin = int(starts[np.argmin(position[starts])])
    user, item = divmod(int(in_order[begin]), items)
    changed = position[starts] if duplicates == "mean" else np.zeros(0, np.int64)
    means = np.zeros(0)
    if duplicates == "mean":
        repeated = ~(new & last)
        group = np.cumsum(new[repeated]) - 1
        means = np.bincount(group, weights=rating[position[repeated]]) / np.bincount(group)
    return RepeatedPairs(
        int((~new).sum()),
        (int(position[begin]), int(position[begin + 1]), user + first, item),
        np.sort(position[~(last if duplicates == "last" else new)]),
        changed,
        means.astype(np.float32),
    )
