"""The lift of a run as an object for notebooks: verdicts as text and HTML, figures as data frames and as a dict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import Any, Literal

from verfedgnn.core.errors import ConfigError
from verfedgnn.core.frames import make_frame
from verfedgnn.evaluation.judged_party import WAYS
from verfedgnn.evaluation.lift_points import list_points, summarise
from verfedgnn.evaluation.seeds import lift_over_seeds
from verfedgnn.evaluation.verdict import headline, party_verdicts, warn_of_one_split
from verfedgnn.evaluation.verdict_words import NEW, judged_tables
from verfedgnn.reports.lift_plan import plan_lift
from verfedgnn.reports.lift_report import lift_html
from verfedgnn.reports.lift_view import band
from verfedgnn.reports.round_progress import watching
from verfedgnn.runs.run import Run
from verfedgnn.training.progress import Stop, Watcher, never

_PREDICTIONS = {"rmse": "ratings", "ndcg@20": "lists"}
_GAINS = {"gain_percent": "percent", "low_percent": "low_percent", "high_percent": "high_percent"}


def lift(
    run: Run,
    *,
    seeds: int = 1,
    watch: Watcher | None = None,
    stop: Stop = never,
    verbose: bool = True,
) -> Lift:
    """Return what joining gains each party, for ratings and lists, known customers and newcomers.

    It trains the parties alone where the run did not, and a second federation to judge newcomers. With `seeds=3` it trains everything with two
    more seeds, and joining pays only where it pays over all of them. Terminals and notebooks show its
    progress and the time left for all trainings, unless `verbose` is False. `watch` is called after every round.
    """
    with watching(verbose, watch, plan_lift(run, seeds)) as watcher:
        return Lift(lift_over_seeds(run, seeds, watch=watcher, stop=stop))


class Lift(Mapping[str, Any]):
    """What joining gains each party. Its keys are those of the `lift` part of metrics.json: `parties`, `lists`, ..."""

    def __init__(self, found: Mapping[str, Any]) -> None:
        self._found = found

    @property
    def verdict(self) -> str:
        """The answer to "does joining pay?" in a few short sentences."""
        return headline(self._found)

    @property
    def summary(self) -> str:
        """For whom joining pays, for whom it does not, and what to do next."""
        return summarise(self._found)

    def to_dict(self) -> dict[str, Any]:
        """Return the `lift` part of metrics.json."""
        return dict(self._found)

    def to_frame(self, by: Literal["party", "group"] = "party") -> Any:
        """Return one row for each party, or for each group of customers, as a data frame of pandas.

        Groups are known customers by their training ratings at the party (`own ratings`), newcomers by those at other parties
        (`ratings elsewhere`), and both by the number of other parties that know them (`other parties`). Rows with party "all" are
        about all parties together. Errors (rmse) are better if lower, ndcg@20 if higher; gains are in per cent with their 95 %
        interval. `pays` is the word that all reports show. Parties are corrected together, and groups among themselves. A group
        that would hold all customers of a party is left out, so that no customers are judged twice.
        """
        if by not in ("party", "group"):
            raise ConfigError(f'by = {by!r} is not known; use by="party" or by="group"')
        rows: list[dict[str, Any]] = []
        for customers, table in judged_tables(self._found):
            what = {
                "prediction": _PREDICTIONS[table["metric"]],
                "metric": table["metric"],
                "customers": "newcomers" if customers == NEW else "known",
            }
            for party, row in [*((row["name"], row) for row in table["parties"]), ("all", table["overall"])]:
                groups = _groups(table if party == "all" else row)
                for group, figures in [({}, row)] if by == "party" else groups:
                    rows.append({"party": party, **group, **what, **_figures(figures)})
        return make_frame(rows)

    def __getitem__(self, key: str) -> Any:
        return self._found[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __repr__(self) -> str:
        provisional = warn_of_one_split(self._found)
        parties = []
        for party in party_verdicts(self._found):
            parties.append(f"{party.name}: {party.pays}. {party.text}.")
            parties += [f"  For whom: {party.for_whom}."] if party.for_whom else []
        points = [f"- {point}" for point in list_points(self._found)]
        lines = [self.verdict, *([provisional] if provisional else []), "", *parties, "", *points]
        return "\n".join(line for text in lines for line in wrap(text, 110, subsequent_indent="  ") or [""])

    def _repr_html_(self) -> str:
        """Show the verdict of each party, groups of customers and charts in a notebook."""
        return lift_html(self._found)


def _groups(table: Mapping[str, Any]) -> list[tuple[dict[str, str], Mapping[str, Any]]]:
    """Return the groups of customers of a table, with the kind and the name of each."""
    bands = {"own ratings": "by_own_ratings", "ratings elsewhere": "by_other_ratings"}
    active = [
        ({"group": kind, "is": band(row)}, row) for kind, name in bands.items() for row in table.get(name, [])
    ]
    elsewhere = [
        ({"group": "other parties", "is": str(row["other_parties"])}, row)
        for row in table.get("by_other_parties", [])
    ]
    return active + elsewhere


def _figures(row: Mapping[str, Any]) -> dict[str, Any]:
    found = row["gain"] or {}
    return {
        "users": row["users"],
        **{way: row[way] for way in WAYS if way in row},
        **{name: found.get(key) for name, key in _GAINS.items()},
        "pays": row["pays"],
    }
