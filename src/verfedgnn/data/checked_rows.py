"""All rows of a plain table that can be read at all, however bad, and where they stand in it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from verfedgnn.data.column_names import RATING_ROLES
from verfedgnn.data.ids import TEXT, is_text, trim
from verfedgnn.data.number_parsing import shorten
from verfedgnn.data.ratings import format_count
from verfedgnn.data.row_problems import SHOWN, SHOWN_OF, DataProblem
from verfedgnn.data.table_sources import PlainTable, TextSource, open_table
from verfedgnn.data.text_files import EncodingError


@dataclass(frozen=True, eq=False)
class CheckedRows:
    """A table with one column a role, ratings of text files as they are written."""

    table: pa.Table
    unread: tuple[DataProblem, ...] = ()
    """What kept other rows from being read, with their lines."""
    text: TextSource | None = None
    broken: NDArray[np.int64] | None = None
    """The records of a text file that are not in the table."""

    @property
    def unit(self) -> str:
        """What places count."""
        return "row" if self.text is None else "line"

    def placed(self, problems: Sequence[DataProblem]) -> list[DataProblem]:
        """All problems, with lines of the file (or rows counted from 1) for the table's rows, found in one pass."""
        rows = sorted({row for problem in problems for row in problem.places})
        if self.text is None or self.broken is None:
            number = {row: row + 1 for row in rows}
        else:
            records = np.array(rows, np.int64) + self.text.text.header
            # Broken record j stands before a row if it would still do so were the j broken ones before it taken out.
            records += np.searchsorted(self.broken - np.arange(len(self.broken)), records, "right")
            lines = self.text.text.lines(records.tolist())
            number = {row: lines[record] for row, record in zip(rows, records.tolist(), strict=True)}
        return [
            *self.unread,
            *(
                replace(p, places=tuple(number[row] for row in p.places), values=self._values(p))
                for p in problems
            ),
        ]

    def _values(self, problem: DataProblem) -> tuple[str, ...]:
        """What stands in a problem's rows, of ratings and times only; no word that is an id in this table, or may be one."""
        column = SHOWN_OF.get(problem.kind)
        if column is None or not problem.places:
            return ()
        words = pc.cast(self.table[column].take(pa.array(problem.places)), TEXT).to_pylist()
        if problem.kind != "not-a-number":
            return tuple(map(shorten, words))
        if 2 * problem.count > self.table.num_rows:
            return ()
        ids = [trim(self.table[role]) for role in ("user", "item") if is_text(self.table[role].type)]
        return tuple(
            "" if any(pc.any(pc.equal(each, word.strip())).as_py() for each in ids) else shorten(word)
            for word in words
        )


def read_rows(source: str | Path, **opening: Any) -> CheckedRows:
    """Read what can be read; a file in another encoding as latin-1, which every file is."""
    opened = open_table(source, **opening)
    opened = _only_looked_at(opened)
    if not isinstance(opened, TextSource):
        return CheckedRows(opened.read())
    unread: list[DataProblem] = []
    try:
        table, broken = _read(opened)
    except EncodingError:
        lines = opened.text.undecodable()
        first = tuple(islice(lines, SHOWN))
        count = len(first) + sum(1 for _ in lines)
        encoding = opened.text.encoding or "utf-8"
        verb = "is" if count == 1 else "are"
        remedy = "read the file with --encoding latin-1, or the one it was written in"
        unread.append(
            DataProblem(
                "encoding",
                f"{format_count(count, 'line')} {verb} not {encoding} text",
                remedy,
                count,
                first,
                fatal=True,
            )
        )
        opened = _only_looked_at(open_table(source, **{**opening, "encoding": "latin-1"}))
        assert isinstance(opened, TextSource)
        table, broken = _read(opened)
    if broken:
        where = opened.text.lines(broken[:SHOWN])
        verb = "has" if len(broken) == 1 else "have"
        remedy = f"correct them, or name the delimiter with --delimiter (now {opened.text.delimiter!r})"
        text = f"{format_count(len(broken), 'line')} {verb} too few or too many fields"
        unread.append(
            DataProblem(
                "broken", text, remedy, len(broken), tuple(where[r] for r in broken[:SHOWN]), fatal=True
            )
        )
    return CheckedRows(table, tuple(unread), opened, np.array(broken, np.int64))


def _only_looked_at(opened: PlainTable) -> PlainTable:
    """Without titles and other columns of items, which cannot be wrong."""
    return replace(
        opened, names={role: name for role, name in opened.names.items() if role in (*RATING_ROLES, "time")}
    )


def _read(opened: TextSource) -> tuple[pa.Table, list[int]]:
    table, broken = opened.text.rows(opened.as_written)
    return opened.by_role(table), broken
