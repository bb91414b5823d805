"""Rows of tables that are larger than memory, checked and converted batch by batch.

A preparation reads the rows twice. The *survey* finds what depends on all rows: ids, missing values, the
scale, the format of times. The *conversion* returns rows that can be numbered and stored. Both report the
same errors and notes as a table that is read as a whole.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from verfedgnn.core.errors import DataError
from verfedgnn.data.column_names import RATING_ROLES
from verfedgnn.data.event_ratings import (
    EventWeights,
    check_events,
    find_complete,
    mixed_times,
    refuse_none,
    unknown_kinds,
)
from verfedgnn.data.ids import TEXT, as_item_text, as_text, encode_unordered, is_text, trim
from verfedgnn.data.number_parsing import ParsedNumbers, find_infinite, parse_numbers
from verfedgnn.data.ratings import (
    BadRows,
    find_missing,
    note_left_out,
    refuse_infinite,
    refuse_missing,
    refuse_outside,
)
from verfedgnn.data.table_sources import PlainTable, TextSource
from verfedgnn.data.time_parsing import (
    AS_MILLISECONDS,
    LATEST_SECONDS,
    as_numbers,
    detect_day_first,
    is_date,
    note_missing_times,
    parse_time_text,
    why_unreadable,
)

NO_TIME = np.iinfo(np.int64).min
"""Time of an event without one, as an integer."""
_WHOLE = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32())
_SAMPLE = 1000
"""Number of times that explain why a later one cannot be read."""

Where = Callable[[int], str]


class RowTables:
    """Several tables with the same columns, read as one table, in order."""

    def __init__(self, tables: Sequence[PlainTable], source: str) -> None:
        self.tables = tables
        self.source = source
        self.roles = list(tables[0].names)
        self._starts: list[int] = []
        for table in tables[1:]:
            other = set(self.roles) ^ set(table.names)
            if other:
                raise DataError(
                    f"the tables have different columns: only some have one for {', '.join(sorted(other))}; "
                    "give tables with the same columns"
                )

    def batches(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the rows in batches, each with the number of rows before it."""
        row = 0
        self._starts = []
        for table in self.tables:
            self._starts.append(row)
            for batch in _batches(table):
                yield row, batch.select(self.roles)
                row += batch.num_rows

    def at(self, row: int) -> str:
        """Describe the place of a row that was read, for messages."""
        table = bisect_right(self._starts, row) - 1
        return self.tables[table].at(row - self._starts[table])

    @cached_property
    def first_batches(self) -> list[pa.RecordBatch]:
        """The first batch of every table that has rows."""
        found = (next(_batches(table), None) for table in self.tables)
        return [batch for batch in found if batch is not None]

    @cached_property
    def whole_ids(self) -> dict[str, bool]:
        """Whether all ids of users and of items are stored as integers, which are faster than text."""
        return {
            role: all(batch.column(role).type in _WHOLE for batch in self.first_batches)
            for role in ("user", "item")
        }

    @cached_property
    def day_first(self) -> bool | None:
        """Whether dates such as 3/4/2025 have the day first; None if no date decides it."""
        return detect_day_first(batch.column("time") for _, batch in self.batches())

    def ids(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """Return the ids of users and items, as integers or as text."""
        return {
            role: pc.cast(batch.column(role), pa.int64())
            if whole
            else trim(as_text(batch.column(role), role))
            for role, whole in self.whole_ids.items()
        }

    def times(self, column: pa.Array) -> pa.Array:
        """Return parsed times; text if they cannot be parsed."""
        parsed = parse_time_text(column)
        return parse_time_text(column, self.day_first) if is_text(parsed.type) else parsed


def _batches(table: PlainTable) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table in batches, ratings and times of a text file as they are written."""
    if not isinstance(table, TextSource):
        yield from table.batches()
        return
    for batch in table.text.batches({column: kind or TEXT for column, kind in table.as_written.items()}):
        yield table.by_role(batch)


@dataclass
class TimeCounts:
    """What decides how times are read, counted over all rows."""

    missing: int = 0
    there: int = 0
    above: int = 0
    """Times that are too large for seconds."""
    largest_below: int = -1
    smallest_above: int = -1

    def add(self, times: NDArray[np.int64], missing: int) -> None:
        """Add times and a number of missing ones."""
        size = np.abs(times)
        above = size > LATEST_SECONDS
        below = int(size[~above].max()) if not above.all() else -1
        least = int(size[above].min()) if above.any() else -1
        self.join(TimeCounts(missing, len(times), int(above.sum()), below, least))

    def join(self, other: "TimeCounts") -> None:
        """Add the counts of other rows."""
        self.missing += other.missing
        self.there += other.there
        self.above += other.above
        self.largest_below = max(self.largest_below, other.largest_below)
        least = [each for each in (self.smallest_above, other.smallest_above) if each >= 0]
        self.smallest_above = min(least, default=-1)

    @property
    def milliseconds(self) -> bool:
        """Whether the median is too large for seconds."""
        if 2 * self.above != self.there or not self.there:
            return 2 * self.above > self.there
        return (self.largest_below + self.smallest_above) / 2 > LATEST_SECONDS


@dataclass
class TimeSurvey:
    """How the times of all rows are written."""

    kind: pa.DataType = field(default_factory=pa.null)
    unreadable: str | None = None
    """Why the times cannot be read; None if they can."""
    _sample: pa.Array | None = None

    def add(self, parsed: pa.Array, written: pa.Array, *, events: bool) -> pa.Array | None:
        """Add a batch of times and return them as integers, None if they cannot be read."""
        if self.unreadable is not None and not events:
            return None
        both = [pa.schema([("time", kind)]) for kind in (self.kind, parsed.type)]
        try:
            self.kind = pa.unify_schemas(both, promote_options="permissive").field(0).type
        except pa.ArrowException as error:
            if events:
                raise mixed_times() from error
            self.unreadable = self._explain(written)
            return None
        numbers = as_numbers(parsed)
        if numbers is None:
            self.unreadable = self.unreadable or self._explain(written)
        elif self._sample is None:
            self._sample = written.slice(0, _SAMPLE)
        return numbers

    def _explain(self, written: pa.Array) -> str:
        before = [] if self._sample is None or self._sample.type != written.type else [self._sample]
        return why_unreadable(pa.chunked_array([*before, written]))

    @property
    def form(self) -> str:
        """How times are stored: "none", "date" (seconds), "fraction" or "number" (seconds or milliseconds)."""
        if self.unreadable is not None:
            return "none"
        if is_date(self.kind):
            return "date"
        return "fraction" if pa.types.is_floating(self.kind) else "number"


class EventRows:
    """Rows of events, which become one rating per pair of a user and an item."""

    def __init__(self, tables: RowTables, events: EventWeights, *, missing: str, name: str) -> None:
        self.tables = tables
        self.events = check_events(events)
        self.name = name
        self.kinds = list(events) if isinstance(events, Mapping) else []
        self.where: Where | None = None if missing == "drop" else tables.at
        self.item_columns = [
            role for role in tables.roles if role not in ("user", "item", "event", "time", "rating")
        ]

    def survey(self) -> Iterator[pa.RecordBatch]:
        """Yield ids and item columns of the rows that are used."""
        self._dropped = 0
        self._counts: Counter[str] = Counter()
        self._times = TimeSurvey()
        for first, batch in self.tables.batches():
            rows = self._complete(first, batch, count=True)
            self._dropped += batch.num_rows - rows.num_rows
            used = self._used(rows)
            if "time" in self.tables.roles and used.num_rows:
                written = used.column("time").combine_chunks()
                self._times.add(self.tables.times(written), written, events=True)
            chosen = used.select(["user", "item"])
            for name in self.item_columns:
                column = trim(as_item_text(used[name], name))
                chosen = chosen.append_column(name, pc.cast(column, TEXT))
            yield from chosen.combine_chunks().to_batches()

    def finish_survey(self) -> dict[str, Any]:
        """Raise `DataError` if the rows cannot be used; otherwise return what was found."""
        self._counts = +self._counts
        rows = sum(self._counts.values())
        if isinstance(self.events, Mapping):
            unknown = {kind: n for kind, n in self._counts.items() if kind not in self.events}
            if unknown:
                raise unknown_kinds(unknown, self.events)
        used = rows - sum(n for kind, n in self._counts.items() if kind in self._ignored)
        refuse_none(self.name, rows, used)
        has_time = "time" in self.tables.roles
        return {
            "used": used,
            "left_out": rows - used,
            "form": self._times.form if has_time else "none",
            "notes": [note_left_out(self._dropped, "no user, item or event")] * bool(self._dropped)
            + [self._times.unreadable] * (self._times.unreadable is not None),
        }

    def convert(self, first: int, batch: pa.RecordBatch, found: Mapping[str, Any]) -> pa.Table:
        """Return user, item, kind and time of the rows that are used."""
        rows = self._used(self._complete(first, batch))
        columns = {"user": rows["user"], "item": rows["item"], "kind": pc.cast(rows["event"], pa.int8())}
        if found["form"] != "none":
            parsed = self.tables.times(rows["time"].combine_chunks())
            fraction = found["form"] == "fraction"
            times = pc.cast(parsed, pa.float64()) if fraction else as_numbers(parsed)
            columns["time"] = pc.fill_null(times, float("nan") if fraction else NO_TIME)
        return pa.table(columns)

    @property
    def _ignored(self) -> list[str]:
        return [kind for kind in self.kinds if isinstance(self.events, Mapping) and not self.events[kind]]

    def _complete(self, first: int, batch: pa.RecordBatch, *, count: bool = False) -> pa.Table:
        """Return the rows that lack nothing, with the number of each row's kind; -1 for an unknown one."""
        keys = self.tables.ids(batch)
        words = [""]
        if self.kinds:
            codes, texts = encode_unordered(batch.column("event"))
            words = trim(as_text(texts, "event")).to_pylist()
            absent = np.array([not word for word in words] + [True])
            keys["event"] = pa.array(codes, mask=absent[codes])
        kept = find_complete(keys, first, self.where)
        others = [name for name in self.tables.roles if name in ("time", *self.item_columns)]
        rows = pa.table({**keys, **{name: batch.column(name) for name in others}})
        if kept is not None:
            rows = rows.filter(kept)
        number = np.zeros(rows.num_rows, np.int64)
        if self.kinds:
            codes = rows["event"].to_numpy()
            place = {kind: k for k, kind in enumerate(self.kinds)}
            number = np.array([place.get(word, -1) for word in words] or [-1])[codes]
        else:
            codes = number
        if count:
            per_word = np.bincount(codes, minlength=len(words)).tolist()
            for word, events in zip(words, per_word, strict=True):
                self._counts[word] += events
        column = pa.array(number)
        return (
            rows.set_column(rows.column_names.index("event"), "event", column)
            if self.kinds
            else rows.append_column("event", column)
        )

    def _used(self, rows: pa.Table) -> pa.Table:
        """Return the rows whose kind has a weight."""
        if not self.kinds:
            return rows
        weighted = np.array([kind not in self._ignored for kind in self.kinds] + [False])
        used = weighted[rows["event"].to_numpy()]
        return rows if used.all() else rows.filter(pa.array(used))


class RatingRows:
    """The rows of tables of ratings, read in pieces and checked as a table in memory is."""

    def __init__(
        self, tables: RowTables, scale: tuple[float, float] | None, *, missing: str, name: str
    ) -> None:
        self.tables = tables
        self.scale = scale
        self.drop = missing == "drop"
        self.name = name
        self.item_columns = [role for role in tables.roles if role not in (*RATING_ROLES, "time")]

    @cached_property
    def _words(self) -> tuple[pa.Array, NDArray[np.float64], ParsedNumbers] | None:
        """Different texts of ratings, their values, and how they were read; None if all ratings are numbers.

        Decimal commas and points cannot be told apart in single batches.
        """
        if not any(is_text(_plain_type(batch.column("rating"))) for batch in self.tables.first_batches):
            return None
        first: dict[str | None, int] = {}
        for before, batch in self.tables.batches():
            codes, texts = encode_unordered(trim(pc.cast(_plain(batch.column("rating")), TEXT)))
            _, places = np.unique(codes[codes >= 0], return_index=True)
            rows = np.flatnonzero(codes >= 0)[places]
            for word, row in zip(texts.to_pylist(), rows.tolist(), strict=True):
                first.setdefault(word, before + row)
        words = pa.array(sorted(first, key=first.__getitem__), TEXT)
        parsed = parse_numbers(words, self.scale)
        parsed.refuse(lambda word: self.tables.at(first[words[word].as_py()]))
        return words, np.append(parsed.values, np.nan), parsed

    def _ratings(self, column: pa.Array) -> NDArray[np.float64]:
        """Return the ratings, NaN where one is missing."""
        if self._words is None:
            return parse_numbers(column, self.scale).values
        words, values, _ = self._words
        found = pc.index_in(trim(pc.cast(_plain(column), TEXT)), value_set=words)
        place: NDArray[np.int64] = pc.fill_null(found, len(words)).to_numpy(zero_copy_only=False)
        return values[place]

    def survey(self) -> Iterator[pa.RecordBatch]:
        """Yield ids, row numbers and item columns of the complete rows."""
        self._absent = {role: BadRows() for role in RATING_ROLES}
        self._infinite = self._outside = BadRows()
        self._low = np.inf
        self._high = -np.inf
        self._rows = 0
        self._gone: list[NDArray[np.int64]] = []
        self._times = TimeSurvey()
        self._time_counts = TimeCounts()
        for first, batch in self.tables.batches():
            self._rows += batch.num_rows
            rows, values = self._complete(first, batch, count=True)
            number = rows["row"].to_numpy()
            bad = BadRows.of(find_infinite(values))
            self._infinite = self._infinite.add(_placed(bad, number), 0)
            if self.scale is not None:
                bad = BadRows.of((values < self.scale[0]) | (values > self.scale[1]))
                self._outside = self._outside.add(_placed(bad, number), 0)
            if len(values):
                self._low = min(self._low, float(values.min()))
                self._high = max(self._high, float(values.max()))
            if "time" in self.tables.roles and rows.num_rows:
                written = rows["time"].combine_chunks()
                times = self._times.add(self.tables.times(written), written, events=False)
                if times is not None:
                    self._time_counts.add(times.drop_null().to_numpy(), times.null_count)
            chosen = rows.select(["user", "item"])
            for name in self.item_columns:
                column = as_item_text(rows[name], name)
                chosen = chosen.append_column(name, pc.cast(column, TEXT))
            if self.item_columns:
                chosen = chosen.append_column("row", rows["row"])
            yield from chosen.combine_chunks().to_batches()

    def finish_survey(self) -> dict[str, Any]:
        """Raise `DataError` if the rows cannot be used; otherwise return what was found."""
        at = self.tables.at
        gone = np.concatenate([np.zeros(0, np.int64), *self._gone])
        if not self._rows:
            raise DataError(
                f"{self.tables.source} has a header but no ratings; give a table with at least one row"
            )
        if not self.drop:
            refuse_missing(self._absent, at)
        refuse_infinite(self._infinite, at)
        if len(gone) == self._rows:
            raise DataError(f"{self.name} has no ratings; give a table with at least one row")
        scale = self.scale or (self._low, self._high)
        refuse_outside(self._outside, scale, at)
        notes = [] if self._words is None else list(self._words[2].notes)
        form = "none"
        counts = self._time_counts
        if "time" in self.tables.roles:
            form = self._times.form
            if self._times.unreadable is not None:
                notes.append(self._times.unreadable)
            elif counts.missing:
                form = "none"
                notes.append(note_missing_times(counts.missing))
            elif form != "date" and counts.milliseconds:
                form = "milliseconds"
                notes.append(AS_MILLISECONDS)
        if len(gone):
            notes.append(note_left_out(len(gone), "no user, item or rating"))
        return {
            "used": self._rows - len(gone),
            "gone": gone,
            "scale": list(scale),
            "form": form,
            "notes": notes,
        }

    def convert(self, first: int, batch: pa.RecordBatch, found: Mapping[str, Any]) -> pa.Table:
        """Return user, item, rating, time and position of the complete rows."""
        rows, values = self._complete(first, batch)
        row = rows["row"].to_numpy()
        columns = {
            "user": rows["user"],
            "item": rows["item"],
            "rating": pa.array(values.astype(np.float32)),
            "position": pa.array(row - np.searchsorted(found["gone"], row)),
        }
        if found["form"] != "none":
            numbers = as_numbers(self.tables.times(rows["time"].combine_chunks()))
            assert numbers is not None
            times = numbers.to_numpy()
            columns["time"] = pa.array(times // 1000 if found["form"] == "milliseconds" else times)
        return pa.table(columns)

    def _complete(
        self, first: int, batch: pa.RecordBatch, *, count: bool = False
    ) -> tuple[pa.Table, NDArray[np.float64]]:
        """Return the rows that lack nothing, with their numbers, and their ratings."""
        ids = self.tables.ids(batch)
        values = self._ratings(batch.column("rating"))
        absent = find_missing(ids["user"], ids["item"], values)
        gone = absent["user"] | absent["item"] | absent["rating"]
        number = np.arange(first, first + batch.num_rows)
        if count:
            self._absent = {
                role: self._absent[role].add(BadRows.of(mask), first) for role, mask in absent.items()
            }
            self._gone.append(number[gone])
        others = {
            name: batch.column(name) for name in ("time", *self.item_columns) if name in self.tables.roles
        }
        rows = pa.table({**ids, **others, "row": pa.array(number)})
        return (rows.filter(pa.array(~gone)), values[~gone]) if gone.any() else (rows, values)


def _placed(bad: BadRows, number: NDArray[np.int64]) -> BadRows:
    """Return bad rows with the first of them as a row of the table."""
    return BadRows(bad.count, int(number[bad.first])) if bad.count else bad


def _plain_type(column: pa.Array) -> pa.DataType:
    return column.type.value_type if pa.types.is_dictionary(column.type) else column.type


def _plain(column: pa.Array) -> pa.Array:
    return pc.cast(column, _plain_type(column))
