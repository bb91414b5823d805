"""Figures of a rating scale."""


def typical_rating(scale: tuple[float, float]) -> float:
    """Return the middle of a rating scale, near which initial predictions should lie.

    For a scale centred at or below 0, return half of its largest absolute value.
    """
    low, high = scale
    middle = (low + high) / 2
    return middle if middle > 0 else max(abs(low), abs(high), 1e-6) / 2


def upper_quarter(scale: tuple[float, float]) -> float:
    """Return the rating from which an item counts as liked: 4 on a scale of 1-5, 7.75 on 1-10, that is 8 in whole stars (App. G)."""
    low, high = scale
    return low + 0.75 * (high - low)


def scale_unit(scale: tuple[float, float]) -> float:
    """Return a quarter of the width of a rating scale: one star on a scale of 1-5. Return 1 for a scale without width."""
    low, high = scale
    return (high - low) / 4 if high > low else 1.0
