"""How many parties take part in a round, and how many a configuration needs."""

from __future__ import annotations

import math

from verfedgnn.config.tree import Config


def active_count(config: Config, parties: int) -> int:
    """Return how many of `parties` take part in a round (Sec. 4.6)."""
    return max(1, round_half_up(config.training.participation * parties))


def round_half_up(value: float) -> int:
    """Round to the nearest integer, halves upwards."""
    return math.floor(value + 0.5)


def fewest_parties_in_sum(config: Config, parties: int) -> int:
    """Return how many of `parties` every sum must include.

    Rounded gradients are nearly exact, and sums of them over changing sets of parties could be solved for single parties. So every
    sum includes all parties.
    """
    return parties if config.gradients.needs_everybody else 1


def too_few(config: Config, least: int, parties: int) -> str | None:
    """Return why a federation of `parties` cannot have the configured protection; None if it can.

    `least` is the smallest number of parties that a sum may have.
    """
    if config.masking and least < 2:
        return "masking hides nothing with a single active party; use more parties or masking=false"
    wanted = fewest_parties_in_sum(config, parties)
    if least < wanted:
        return (
            f"gradients.mechanism = {config.gradients.mechanism} needs all {wanted} parties in every sum, but a sum may have {least}. "
            f"Sums over changing sets show a single party's gradients; set min_parties = {wanted} in federation.toml, and send it to "
            "all members"
        )
    return None
