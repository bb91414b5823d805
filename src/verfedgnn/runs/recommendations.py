"""Recommended items as Python returns them: a list, with reasons and as a data frame."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from html import escape
from typing import Any

from verfedgnn.core.frames import make_frame


@dataclass(frozen=True)
class Recommendation:
    """One recommended item."""

    item: str
    title: str
    party: str
    score: float
    """The number that orders the list, which adds up to 1 over all unrated items; the predicted rating without lists."""
    rating: float | None = None
    """The predicted rating, within the party's scale; None if the run predicts no ratings."""


class Recommendations(list[Recommendation]):
    """The best items of one user, best first."""

    def __init__(self, items: Iterable[Recommendation], explain: Callable[[], list[str]]) -> None:
        """Hold `items`; `explain` returns a reason for each of them, and is called when reasons are asked for."""
        super().__init__(items)
        self._explain = explain

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)  # reasons need the run

    @cached_property
    def reasons(self) -> list[str]:
        """Why each item is in the list: what the user liked that it follows from, or that others like it."""
        return self._explain() if self else []

    def to_rows(self) -> list[dict[str, Any]]:
        """Return one dictionary per item, with its reason."""
        return [asdict(item) | {"reason": why} for item, why in zip(self, self.reasons, strict=True)]

    def to_frame(self) -> Any:
        """Return the list as a data frame of pandas: item, title, party, score, rating and reason.

        Titles and ratings are left out if no item has one.
        """
        rows = self.to_rows()
        names = self._filled(rows)
        return make_frame([{name: row[name] for name in names} for row in rows])

    @staticmethod
    def _filled(rows: list[dict[str, Any]]) -> list[str]:
        """Return the names of the columns that are not empty."""
        return [name for name in rows[0] if any(row[name] not in ("", None) for row in rows)] if rows else []

    def _repr_html_(self) -> str:
        """Show the list as a table in a notebook."""
        rows = self.to_rows()
        names = [name for name in self._filled(rows) if name != "score"]
        head = "".join(f"<th>{name}</th>" for name in ["", *names])
        body = "".join(
            f"<tr><td>{place}</td>{''.join(f'<td>{_cell(row[name])}</td>' for name in names)}</tr>"
            for place, row in enumerate(rows, 1)
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.2f}" if isinstance(value, float) else escape(str(value))
