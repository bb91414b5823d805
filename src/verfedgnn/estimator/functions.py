"""Training, resuming, the lift of a run and the settings from Python, shown on a terminal or in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

from verfedgnn.config import Config
from verfedgnn.config.settings import Setting
from verfedgnn.config.tree import find_settings
from verfedgnn.core.errors import RunError
from verfedgnn.core.installed import make_frame
from verfedgnn.core.option_names import worded
from verfedgnn.data import PartyData
from verfedgnn.evaluation.lift import WAYS
from verfedgnn.evaluation.verdict import NEW, answers, judged_tables, list_points
from verfedgnn.reports.lift_report import lift_html
from verfedgnn.reports.round_progress import watching
from verfedgnn.runs.run import Run
from verfedgnn.training.progress import Watcher
from verfedgnn.training.train import resume as resume_quietly
from verfedgnn.training.train import train as train_quietly


def train(
    parties: Sequence[PartyData],
    config: Config | None = None,
    *,
    watch: Watcher | None = None,
    verbose: bool = True,
    **options: Any,
) -> Run:
    """Train `parties` together and return the run; with `out`, also write it to a folder that can be resumed and loaded.

    Terminals and notebooks show the progress, unless `verbose` is False. `watch` is called after every round.

    Args:
        **options: `out` and `overwrite`; `device`; `after`, the folder of the run before this one, whose forgotten users are left
            out, and a warning tells of a file with mostly new items; `parts`, one array per party with `TRAIN`,
            `VALID` or `TEST` for each rating, in place of the configured split; `stop`, a function: when it returns true, the
            round is finished, a checkpoint is written and `Interrupted` is raised.
    """
    with watching(verbose, watch) as watcher:
        return train_quietly(parties, config, watch=watcher, **options)


def resume(out: str | Path, *, watch: Watcher | None = None, verbose: bool = True, **options: Any) -> Run:
    """Resume an interrupted run from its last checkpoint; the result is the same as without the interruption.

    Terminals and notebooks show the progress, unless `verbose` is False. `options` are `device` and `stop`, as in `train`.
    """
    with watching(verbose, watch) as watcher:
        return resume_quietly(out, watch=watcher, **options)


def lift(run: Run) -> Lift:
    """Return what joining gains each party, in lists and ratings, for known and for new customers. Nothing is trained for it."""
    if "lift" not in run.metrics:
        remedy = worded("train with preset best, or with --set gate=true", 'train with Config.preset("best")')
        raise RunError(
            f"this run has no gate, so it does not know what its parties would have alone; {remedy}"
        )
    return Lift(run.metrics["lift"])


_PERCENTS = {"gain": "percent", "low": "low_percent", "high": "high_percent"}


class Lift(dict[str, Any]):
    """What joining gains each party. Its keys are those of the `lift` part of metrics.json: `parties`, `lists`, ..."""

    @property
    def headline(self) -> str:
        """The answer to "does joining pay?" in one or two sentences."""
        return str(self["headline"])

    def to_dict(self) -> dict[str, Any]:
        """Return the `lift` part of metrics.json."""
        return dict(self)

    def to_frame(self) -> Any:
        """Return one row for each party, and one for all of them together, as a data frame of pandas.

        Errors (rmse) are better if lower, hitrate@20 if higher; gains are in per cent with their 95 % interval. `pays` is the word
        that all reports show.
        """
        rows: list[dict[str, Any]] = []
        for customers, table in judged_tables(self):
            metric = table["metric"]
            what = {"prediction": "ratings" if metric == "rmse" else "lists", "metric": metric}
            what["customers"] = "new" if customers == NEW else "known"
            for row in [*table["parties"], {**table["overall"], "name": "all"}]:
                gain = row["gain"] or {}
                shown = {way: row[way] for way in WAYS if way in row}
                shown |= {f"{each}_percent": gain.get(name) for each, name in _PERCENTS.items()}
                rows.append(
                    {"party": row["name"], **what, "users": row["users"], **shown, "pays": row["pays"]}
                )
        return make_frame(rows)

    def __repr__(self) -> str:
        parties = [f"{each['name']}: {each['pays']}. {' '.join(each['sentences'])}" for each in answers(self)]
        lines = [self.headline, "", *parties, "", *(f"- {point}" for point in list_points(self))]
        return "\n".join(line for text in lines for line in wrap(text, 110, subsequent_indent="  ") or [""])

    def _repr_html_(self) -> str:
        """Show the verdict of each party and charts in a notebook."""
        return lift_html(self)


def settings(name: str | None = None) -> SettingList:
    """Return the settings with this name, or those whose name contains it; without a name, all of them.

    Pass a setting as a keyword argument: `VerFedRecommender(epochs=60)`, `Config.preset("best", epochs=60)`.
    """
    return SettingList(find_settings(name))


class SettingList(list[Setting]):
    """Settings with their meaning, range, and value in each preset."""

    def __repr__(self) -> str:
        return "\n\n".join(entry.describe() for entry in self)
