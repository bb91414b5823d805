"""What a training with these sources will meet: too few items, users or ratings, two parties, different scales, few shared users."""

from collections.abc import Sequence
from dataclasses import dataclass

from verfedgnn.core.option_names import option, worded
from verfedgnn.data.data_check import CheckedSource, UserOverlap
from verfedgnn.data.ratings import format_count

MOST_RATIO = 1.5
"""Largest ratio of two rating scales' widths without a warning."""
FEWEST_SHARED = 0.5
"""Share of users at two or more parties below which the overlap is called small."""
FEWEST_RATINGS = 30
"""Ratings of a party below which its validation or test part may be empty, so that `train` refuses it."""
FEWEST_USERS = 20
"""Users below which a result says nothing about others."""
PARTIES = 10
"""Parties among which `train` divides the items of one source by default."""


def foresee_training(found: Sequence[CheckedSource], overlap: UserOverlap | None) -> list[str]:
    """Return warnings about a training with these sources, each with its remedy; `overlap` is that of several sources."""
    if not all(each.usable for each in found):
        return []
    warnings = _foresee_sizes(found)
    return warnings if overlap is None else warnings + _foresee_federation(found, overlap)


def fitting_parties(found: Sequence[CheckedSource]) -> int | None:
    """Return how many parties the items of one source can be divided among; None if the default fits."""
    shape = found[0].shape
    if len(found) > 1 or shape is None:
        return None
    most = min(shape.items, shape.ratings // FEWEST_RATINGS)
    return None if most >= PARTIES else max(1, most)


@dataclass(frozen=True)
class Conclusion:
    """What follows from a check."""

    usable: bool
    """Whether a training takes the sources."""
    text: str
    """What a training will do with them, or why it refuses them and what to do."""
    doubtful: bool = False
    """Whether a training may refuse the sources, because one of them is very small."""


def conclude(
    found: Sequence[CheckedSource], overlap: UserOverlap | None, *, named: bool = False
) -> Conclusion:
    """Say what a training will do with these sources, or why it refuses them and what to do.

    `named` says that one table was given as one party by name, which `fit` does not divide.
    """
    refusal = _find_refusal(found, overlap, named)
    if refusal is not None:
        return Conclusion(False, f"This cannot be trained, because {refusal}")
    small = [each for each in found if each.shape is not None and each.shape.ratings < FEWEST_RATINGS]
    if small:
        reason = f"{small[0].name} has fewer than {FEWEST_RATINGS} ratings"
        return Conclusion(
            True, f"A training may refuse this, because {reason}. Add ratings, then check again.", True
        )
    return Conclusion(True, _describe_outlook(found, overlap))


def _find_refusal(found: Sequence[CheckedSource], overlap: UserOverlap | None, named: bool) -> str | None:
    """Return why a training refuses these sources, and the remedy; None if it takes them."""
    broken = [each for each in found if not each.usable]
    if broken:
        names = " and ".join(each.name for each in broken)
        first = next(problem.text for problem in broken[0].problems if problem.fatal)
        reason = first.removeprefix(f"{broken[0].name}: ").partition("; ")[0]
        return f"{names} cannot be used ({reason}). Correct it as the errors say, then check again."
    if overlap is not None and not overlap.usable:
        return "no user is at two parties. Spell user ids in the same way in all tables, then check again."
    if named and len(found) == 1:
        parties = fitting_parties(found) or PARTIES
        return (
            f"'{found[0].name}' is the only party and joining needs two or more. Pass one table per party, or try it on "
            f"one catalogue with `fit(table, parties={parties})`."
        )
    return None


def _describe_outlook(found: Sequence[CheckedSource], overlap: UserOverlap | None) -> str:
    """Say in a sentence what a training will do with these usable sources."""
    if lists_only(found):
        return "A source has equal ratings only, so there are no ratings to predict; training learns lists from them."
    if overlap is None:
        parties = fitting_parties(found) or PARTIES
        return worded(
            f"One source: `train` divides its items at random among parties ({parties} here), which simulates a federation. "
            "Use `--by COLUMN`, or one source per party, for parties that exist.",
            f"One table: `fit(table, parties={parties})` divides its items at random among parties, which simulates a federation. "
            "Pass one table per party for parties that exist.",
        )
    users, _ = overlap.count_from(1)
    return (
        f"{len(found)} sources can be trained together: {overlap.shared:,} of {users:,} users "
        f"({100 * overlap.shared / users:.0f} %) are at two or more parties, and the others take part as well."
    )


def lists_only(found: Sequence[CheckedSource]) -> bool:
    """Return whether all ratings of a source are equal, so that only lists can be learnt from it."""
    return any(each.shape is not None and each.shape.lowest == each.shape.highest for each in found)


def _foresee_sizes(found: Sequence[CheckedSource]) -> list[str]:
    """Return warnings about sources that are too small to train or to judge."""
    warnings = []
    for each in found:
        shape = each.shape
        if shape is None:
            continue
        if shape.ratings < FEWEST_RATINGS:
            warnings.append(
                f"{each.name} has {format_count(shape.ratings, 'rating')}: its validation or test part may be empty, and "
                "training refuses that; add ratings"
            )
        elif shape.users < FEWEST_USERS:
            warnings.append(
                f"{each.name} has {format_count(shape.users, 'user')}: training runs, but its figures say nothing about other "
                "users; add users"
            )
    parties = fitting_parties(found)
    shape = found[0].shape
    if parties is not None and shape is not None:
        warnings.append(
            f"{format_count(shape.items, 'item')} with {format_count(shape.ratings, 'rating')} are too few for {PARTIES} "
            f"parties: pass {option('parties', parties)} to {worded('`train`', '`fit`')}"
        )
    return warnings


def _foresee_federation(found: Sequence[CheckedSource], overlap: UserOverlap) -> list[str]:
    """Return warnings about several sources together."""
    warnings = []
    if len(found) == 2:
        warnings.append(
            "there are two parties: either can subtract its own part from a sum, so both add noise; with a third "
            "party, masks hide more than noise does"
        )
    scales = [(each.name, each.shape.lowest, each.shape.highest) for each in found if each.shape is not None]
    widths = [(high - low, name, low, high) for name, low, high in scales if high > low]
    if widths and max(widths)[0] > MOST_RATIO * min(widths)[0]:
        one, other = (
            f"{name} rates from {low:g} to {high:g}" for _, name, low, high in (min(widths), max(widths))
        )
        scale = option("own", {"...": {"scale": (1, 5)}})
        warnings.append(
            f"{one}, {other}: errors are in each party's own unit, so compare parties, not the overall RMSE; declare both "
            f"scales with {worded('--scale NAME:LOW,HIGH', scale)}"
        )
    users, _ = overlap.count_from(1)
    alone = users - overlap.shared
    if overlap.shared and overlap.shared < FEWEST_SHARED * users:
        warnings.append(
            f"{alone:,} of {users:,} users are at one party only: they take part and are served, but only shared users "
            f"connect the parties; look at the lift by other parties ({worded('`train --lift`', '`lift()`')})"
        )
    return warnings
