"""What a training with several sources will meet: two parties, different rating scales, few shared users."""

from collections.abc import Sequence

from verfedgnn.data.data_check import CheckedSource, UserOverlap

MOST_RATIO = 1.5
"""Largest ratio of two rating scales' widths without a warning."""
FEWEST_SHARED = 0.5
"""Share of users at two or more parties below which the overlap is called small."""


def foresee_training(found: Sequence[CheckedSource], overlap: UserOverlap) -> list[str]:
    """Return warnings about a training with these sources, each with its remedy."""
    warnings = []
    if len(found) == 2:
        warnings.append(
            "there are two parties: either can subtract its own part from a sum, so `train` exchanges noised sums; a third "
            "party hides more"
        )
    scales = [(each.name, each.shape.lowest, each.shape.highest) for each in found if each.shape is not None]
    widths = [(high - low, name, low, high) for name, low, high in scales if high > low]
    if widths and max(widths)[0] > MOST_RATIO * min(widths)[0]:
        one, other = (
            f"{name} rates from {low:g} to {high:g}" for _, name, low, high in (min(widths), max(widths))
        )
        warnings.append(
            f"{one}, {other}: errors are in each party's own unit, so compare parties, not the overall RMSE; declare both "
            "scales with --scale NAME:LOW,HIGH"
        )
    users, _ = overlap.count_from(1)
    alone = users - overlap.shared
    if overlap.shared and overlap.shared < FEWEST_SHARED * users:
        warnings.append(
            f"{alone:,} of {users:,} users are at one party only: they take part and are served, but only shared users "
            "connect the parties; look at the lift by other parties after `train --lift`"
        )
    return warnings
