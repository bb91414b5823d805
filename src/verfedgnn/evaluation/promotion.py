"""Champion and challenger: whether tonight's run may replace the run that is served.

The judged models are compared, never those that were trained on all ratings, on the challenger's test ratings, which neither was
trained on. This holds for two runs with the same seed and the same kind of split, since the part of a rating follows from its ids;
it is checked.

The challenger is also compared with the best run that was promoted before, so that tolerated losses of single nights do not add up.
Every promoted run names that run, by metric, in its folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verfedgnn.core.errors import RunError
from verfedgnn.core.files import writing
from verfedgnn.data import TEST, TRAIN, VALID
from verfedgnn.evaluation.chance import FEWEST_USERS, format_gain
from verfedgnn.evaluation.run_difference import (
    ABSENT,
    MatchedParty,
    compare_data,
    compare_runs,
    in_both_tests,
    match_parties,
)
from verfedgnn.evaluation.verdict import is_judged
from verfedgnn.runs.run import Run, write_json

BEST = "best-promoted.json"
"""File in the folder of a promoted run: the best run promoted up to it, as a path from that folder, by metric."""
_NAMES = {"rmse": "RMSE", "ndcg@20": "NDCG@20"}


def judge_challenger(
    champion: Run,
    challenger: Run,
    *,
    best: Mapping[str, Run] | None = None,
    tolerance: float = 0.0,
    max_lost: float = 10.0,
) -> dict[str, Any]:
    """Return whether the challenger may replace the champion, the reasons if not, and the figures of both.

    It may not if its RMSE or NDCG@20 is worse by more than `tolerance` per cent with the whole 95 % interval, either on the
    ratings that came since the champion or on those that both runs tested, or if it lacks more than `max_lost` per cent of the
    champion's parties, users, items or ratings. The same holds for the `best` promoted run of each metric instead of the
    champion; "best_in" lists the metrics in which the challenger is not worse than that run. Raise `RunError` if the runs cannot be
    judged fairly.
    """
    parties = match_parties(champion, challenger)
    if not parties:
        raise RunError("the two runs have no party in common; give two runs of the same organisations")
    figures = _compare(champion, challenger, parties)
    data = compare_data(champion, challenger, parties)
    reasons = [
        *_find_losses(data, max_lost),
        *_find_worse(figures["new"], "on the ratings that came since", tolerance),
        *_find_worse(figures["shared"], "on the test ratings of both runs", tolerance),
    ]
    judged = [part["overall"]["users"] for each in figures.values() for part in each.values()]
    if max(judged) < FEWEST_USERS:
        raise RunError(
            f"the two runs share test ratings of {max(judged)} users, and a verdict needs {FEWEST_USERS}; "
            "collect more ratings or switch the link by hand"
        )
    best_in = []
    for metric, run in (best or {}).items():
        compared = figures
        if run is not champion:
            compared = _compare(run, challenger, match_parties(run, challenger))
            for each in compared.values():
                own = {metric: each[metric]} if metric in each else {}
                reasons += _find_worse(own, "compared with the best promoted run", tolerance)
        rows = [each[metric]["overall"] for each in compared.values() if metric in each]
        if not any(is_judged(row) and row["gain"]["value"] < 0 for row in rows):
            best_in.append(metric)
    return {
        "promoted": not reasons,
        "reasons": reasons,
        "best_in": best_in,
        "figures": figures,
        "data": data,
    }


def read_best(folder: Path) -> dict[str, Path]:
    """Return the best run, by metric, of those promoted up to the one in `folder`: that run itself if its folder names none."""
    file = folder / BEST
    named = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    best = {metric: (folder / named.get(metric, ".")).resolve() for metric in _NAMES}
    gone = next((path for path in best.values() if not path.is_dir()), None)
    if gone is not None:
        raise RunError(
            f"{gone} is the best run that was promoted, and it is gone; without it, losses of single nights would add up. "
            "Put it back, or switch the link by hand"
        )
    return best


def write_best(folder: Path, best: Mapping[str, Path]) -> None:
    """Name the best promoted runs in the folder of a run that is promoted."""
    inside = folder.resolve()
    paths = {metric: os.path.relpath(path.resolve(), inside) for metric, path in best.items()}
    with writing(folder):
        write_json(folder / BEST, paths)


def _compare(
    champion: Run, challenger: Run, parties: list[MatchedParty]
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the figures of both runs on the ratings that came since, and on those that both tested.

    Raise `RunError` if the earlier run was trained on, or chosen by, a test rating of the challenger.
    """
    leaked = sum(int(((p.part == TEST) & np.isin(p.earlier_part, (TRAIN, VALID))).sum()) for p in parties)
    if leaked:
        tests = sum(int((party.part == TEST).sum()) for party in parties)
        raise RunError(
            f"{leaked:,} of the challenger's {tests:,} test ratings were training or validation ratings of the champion, so they "
            "cannot judge it; train both with the same seed and [split]"
        )

    def came_since(party: MatchedParty) -> NDArray[np.bool_]:
        return np.asarray((party.part == TEST) & (party.earlier_part == ABSENT))

    return {
        "new": compare_runs(champion, challenger, parties, came_since),
        "shared": compare_runs(champion, challenger, parties, in_both_tests),
    }


def _find_worse(figures: Mapping[str, Any], where: str, tolerance: float) -> list[str]:
    """Return a sentence for each metric by which the challenger is worse, with the whole interval beyond the tolerance."""
    found = []
    for metric, part in figures.items():
        row = part["overall"]
        if not is_judged(row) or row["gain"]["high_percent"] >= -tolerance:
            continue
        found.append(
            f"{_NAMES[metric]} {where} is worse: {row['after']:.4f} instead of {row['before']:.4f}, "
            f"{format_gain(row)}"
        )
    return found


def _find_losses(data: Mapping[str, Any], max_lost: float) -> list[str]:
    """Return a sentence for each party, and each party's users, items or ratings, of which too many are gone."""
    found = [f"party '{name}' is gone" for name in data["parties_removed"]]
    for party in data["parties"]:
        for what in ("users", "items", "ratings"):
            change = party[what]
            lost = 100 * change["removed"] / max(1, change["before"])
            if lost > max_lost:
                found.append(
                    f"{lost:.0f} % of the {what} of party '{party['name']}' are gone ({change['removed']:,} of {change['before']:,})"
                )
    return found
