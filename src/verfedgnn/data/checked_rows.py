"""The readable rows of a plain table, valid or not, with their line numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from verfedgnn.core.option_names import option
from verfedgnn.data.column_names import RATING_ROLES
from verfedgnn.data.ids import TEXT, is_text, trim
from verfedgnn.data.number_parsing import shorten
from verfedgnn.data.ratings import format_count
from verfedgnn.data.row_problems import SHOWN, SHOWN_OF, DataProblem
from verfedgnn.data.table_sources import PlainTable, TextSource, open_table
from verfedgnn.data.text_files import EncodingError


@dataclass(frozen=True, eq=False)
class CheckedRows:
    """A table with one column per role. Ratings from text files are kept as text."""

    table: pa.Table
    unread: tuple[DataProblem, ...] = ()
    """Problems of the rows that could not be read, with their lines."""
    text: TextSource | None = None
    broken: NDArray[np.int64] | None = None
    """Record numbers of a text file that are not in the table."""
    first: int = 1
    """Number of the first row; tables in memory count from 0."""

    @property
    def unit(self) -> str:
        """The unit of places in messages: "line", "row", or "position" in a table that counts from 0."""
        if self.text is not None:
            return "line"
        return "row" if self.first else "position"

    def placed(self, problems: Sequence[DataProblem]) -> list[DataProblem]:
        """Return all problems, with the table's row numbers replaced by lines of the file or by rows counted
        from `first`.

        The file is read once for all problems.
        """
        rows = sorted({row for problem in problems for row in problem.places})
        if self.text is None or self.broken is None:
            number = {row: row + self.first for row in rows}
        else:
            records = np.array(rows, np.int64) + self.text.text.header
            # Removing the j broken records before broken record j shifts it by j; compare the shifted positions.
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
        """Return the ratings or times in a problem's rows, without texts that are or may be ids of this
        table.
        """
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
    """Read all readable rows. If the encoding is wrong, fall back to latin-1, which decodes any file."""
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
        remedy = f"give the encoding of the file, for example {option('encoding', 'latin-1')}"
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
        remedy = (
            f"correct them, or name the delimiter with {option('delimiter')} (now {opened.text.delimiter!r})"
        )
        text = f"{format_count(len(broken), 'line')} {verb} too few or too many fields"
        unread.append(
            DataProblem(
                "broken", text, remedy, len(broken), tuple(where[r] for r in broken[:SHOWN]), fatal=True
            )
        )
    return CheckedRows(table, tuple(unread), opened, np.array(broken, np.int64))


def _only_looked_at(opened: PlainTable) -> PlainTable:
    """Drop titles and other item columns, which need no check."""
    return replace(
        opened, names={role: name for role, name in opened.names.items() if role in (*RATING_ROLES, "time")}
    )


def _read(opened: TextSource) -> tuple[pa.Table, list[int]]:
    table, broken = opened.text.rows(opened.as_written)
    return opened.by_role(table), broken
