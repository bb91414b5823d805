"""Champion and challenger: whether tonight's run may replace the run that is served.

Both are judged on the challenger's test ratings, which neither of them nor any of their ancestors was trained on. This holds for
two runs with the same seed and the same kind of split, since the part of a rating follows from its ids; it is checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verfedgnn.core.errors import RunError
from verfedgnn.data import TEST, TRAIN, VALID
from verfedgnn.data.rating_drift import measure_drift
from verfedgnn.evaluation.bootstrap import FEWEST_USERS
from verfedgnn.evaluation.gain_text import format_gain
from verfedgnn.evaluation.matched_runs import (
    ABSENT,
    MatchedParty,
    compare_runs,
    in_both_tests,
    match_parties,
)
from verfedgnn.evaluation.run_difference import compare_data
from verfedgnn.runs.run import Run

_NAMES = {"rmse": "RMSE", "ndcg@20": "NDCG@20"}


def judge_challenger(
    champion: Run, challenger: Run, *, tolerance: float = 0.0, max_lost: float = 10.0
) -> dict[str, Any]:
    """Return whether the challenger may replace the champion, the reasons if not, the figures of both, and the drift.

    It may not if its RMSE or NDCG@20 is worse by more than `tolerance` per cent with the whole 95 % interval, either on the
    ratings that came since the champion or on those that both runs tested, or if it lacks more than `max_lost` per cent of the
    champion's parties, users, items or ratings. Raise `RunError` if the runs cannot be judged fairly.
    """
    parties = match_parties(champion, challenger)
    if not parties:
        raise RunError("the two runs have no party in common; give two runs of the same organisations")
    check_unseen(challenger, parties)
    figures = {
        "new": compare_runs(champion, challenger, parties, _only_later_tests),
        "shared": compare_runs(champion, challenger, parties, in_both_tests),
    }
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
    drift = [
        {"name": party.name}
        | measure_drift(champion.parties[party.before].ratings, challenger.parties[party.after].ratings)
        for party in parties
    ]
    return {"promoted": not reasons, "reasons": reasons, "figures": figures, "data": data, "drift": drift}


def check_unseen(challenger: Run, parties: list[MatchedParty]) -> None:
    """Raise `RunError` if a run or an ancestor of it was trained on, or chosen by, a test rating of the challenger."""
    leaked = sum(int(((p.part == TEST) & np.isin(p.earlier_part, (TRAIN, VALID))).sum()) for p in parties)
    tests = sum(int((party.part == TEST).sum()) for party in parties)
    if leaked:
        raise RunError(
            f"{leaked:,} of the challenger's {tests:,} test ratings were training or validation ratings of the champion, so they "
            "cannot judge it; train both with the same seed and [split]"
        )
    ancestor = challenger.metrics.get("from")
    if ancestor is not None and not ancestor["same_split"]:
        raise RunError(
            "the challenger started from a run with another seed or [split], which may have been trained on its test ratings; "
            "train it again with the seed of its ancestor, or without --from"
        )


def _only_later_tests(party: MatchedParty) -> NDArray[np.bool_]:
    """Choose the test ratings of the challenger that the champion did not have."""
    return np.asarray((party.part == TEST) & (party.earlier_part == ABSENT))


def _find_worse(figures: Mapping[str, Any], where: str, tolerance: float) -> list[str]:
    """Return a sentence for each metric by which the challenger is worse, with the whole interval beyond the tolerance."""
    found = []
    for metric, part in figures.items():
        row = part["overall"]
        gain = row["gain"]
        if gain is None or row["users"] < FEWEST_USERS or gain["high_percent"] >= -tolerance:
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
