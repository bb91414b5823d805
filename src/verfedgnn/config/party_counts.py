"""How many parties a configuration needs: in a round, in a sum, and in a federation."""

from __future__ import annotations

import math

from verfedgnn.config.tree import Config
from verfedgnn.core.option_names import setting


def active_count(config: Config, parties: int) -> int:
    """Return how many of `parties` take part in a round (Sec. 4.6)."""
    return max(1, round_half_up(config.training.participation * parties))


def round_half_up(value: float) -> int:
    """Round to the nearest integer, halves upwards."""
    return math.floor(value + 0.5)


def fewest_parties_in_sum(config: Config, parties: int) -> int:
    """Return how many of `parties` every sum of neighbourhoods must include.

    Masked sums are exact. With two parties, the sum minus a party's own share is the other's matrix; sums over changing sets can
    be solved for single parties. So a masked sum includes all parties, and at least three, unless `unprotected` names `sums`.
    """
    if config.exchange.mode == "masked":
        return 3 if "sums" in config.unprotected else max(3, parties)
    return 2 if config.exchange.mode == "noised" else 1


def too_few(config: Config, least: int, parties: int) -> str | None:
    """Return why a federation of `parties` cannot have the configured protection; None if it can.

    `least` is the smallest number of parties that a sum may have.
    """
    if config.masking and least < 2:
        return "masking hides nothing with a single active party; use more parties or masking=false"
    wanted = fewest_parties_in_sum(config, parties)
    if least >= wanted:
        return None
    remedy = (
        f"two parties use {setting('exchange.mode', 'projected')}, or {setting('exchange.mode', 'noised')} "
        f"{setting('exchange.noise', 0.05)} {setting('exchange.row_clip', 0.5)}, or off"
        if parties == 2
        else "use participation = 1 and a minimum of all parties (three or more), exchange.mode = projected, off, or "
        f"noised (with exchange.noise and .row_clip), or {setting('unprotected', 'sums')}"
    )
    return (
        f"exchange.mode = {config.exchange.mode} needs {wanted} parties in every sum, but a sum may have {least}. Exact sums over "
        f"fewer parties, or over changing sets, show a single party's matrix; {remedy}"
    )
