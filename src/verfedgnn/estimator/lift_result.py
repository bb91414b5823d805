"""The lift of a run as an object for notebooks: verdicts as text and HTML, figures as data frames and as a dict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import Any, Literal

from verfedgnn.core.errors import ConfigError, RunError
from verfedgnn.core.installed import make_frame
from verfedgnn.core.option_names import worded
from verfedgnn.evaluation.lift import WAYS
from verfedgnn.evaluation.verdict import NEW, answers, judged_tables, list_points
from verfedgnn.reports.lift_report import band, lift_html
from verfedgnn.runs.run import Run

_PREDICTIONS = {"rmse": "ratings", "hitrate@20": "lists"}
_GAINS = {"gain_percent": "percent", "low_percent": "low_percent", "high_percent": "high_percent"}


def lift(run: Run) -> Lift:
    """Return what joining gains each party, in lists and ratings, for known and for new customers. Nothing is trained for it."""
    if "lift" not in run.metrics:
        remedy = worded("train with preset best, or with --set gate=true", 'train with Config.preset("best")')
        raise RunError(
            f"this run has no gate, so it does not know what its parties would have alone; {remedy}"
        )
    return Lift(run.metrics["lift"])


class Lift(Mapping[str, Any]):
    """What joining gains each party. Its keys are those of the `lift` part of metrics.json: `parties`, `lists`, ..."""

    def __init__(self, figures: Mapping[str, Any]) -> None:
        self._figures = figures

    @property
    def headline(self) -> str:
        """The answer to "does joining pay?" in one or two sentences."""
        return str(self._figures["headline"])

    def to_dict(self) -> dict[str, Any]:
        """Return the `lift` part of metrics.json."""
        return dict(self._figures)

    def to_frame(self, by: Literal["party", "group"] = "party") -> Any:
        """Return one row for each party, or for each group of customers, as a data frame of pandas.

        Groups are known customers by their training ratings at the party. Rows with party "all" are about all parties together.
        Errors (rmse) are better if lower, hitrate@20 if higher; gains are in per cent with their 95 % interval. `pays` is the word
        that all reports show. The rows of a party are corrected together, and its groups among themselves.
        """
        if by not in ("party", "group"):
            raise ConfigError(f'by = {by!r} is not known; use by="party" or by="group"')
        rows: list[dict[str, Any]] = []
        for customers, table in judged_tables(self._figures):
            what = {
                "prediction": _PREDICTIONS[table["metric"]],
                "metric": table["metric"],
                "customers": "new" if customers == NEW else "known",
            }
            every = [*((row["name"], row) for row in table["parties"]), ("all", table["overall"])]
            for party, row in every:
                groups = [({"own ratings": band(each)}, each) for each in row.get("by_own_ratings", [])]
                for group, figures in [({}, row)] if by == "party" else groups:
                    rows.append({"party": party, **group, **what, **_columns(figures)})
        return make_frame(rows)

    def __getitem__(self, key: str) -> Any:
        return self._figures[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._figures)

    def __len__(self) -> int:
        return len(self._figures)

    def __repr__(self) -> str:
        parties = [
            f"{each.party}: {each.word}. {' '.join(each.sentences)}" for each in answers(self._figures)
        ]
        lines = [self.headline, "", *parties, "", *(f"- {point}" for point in list_points(self._figures))]
        return "\n".join(line for text in lines for line in wrap(text, 110, subsequent_indent="  ") or [""])

    def _repr_html_(self) -> str:
        """Show the verdict of each party and charts in a notebook."""
        return lift_html(self._figures)


def _columns(row: Mapping[str, Any]) -> dict[str, Any]:
    gain = row["gain"] or {}
    return {
        "users": row["users"],
        **{way: row[way] for way in WAYS if way in row},
        **{name: gain.get(key) for name, key in _GAINS.items()},
        "pays": row["pays"],
    }
