r"""Releases as privacy events, and their composition.

A release is one kind of message that a party sends repeatedly. Its event says how well one message
distinguishes two neighbouring inputs; the caller defines which inputs are neighbours. `dp-accounting`
composes noisy releases by Renyi divergences, and the events have its names. Ternary values have a total
variation instead of an epsilon; k of them compose to

.. math::
    \delta_k = 1 - \prod_{i \le k} (1 - \delta_i) .

A release without an event is protected by other means or not at all, and is not part of any epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

ORDERS = (*range(2, 65), 80, 96, 128, 192, 256, 512, 1024)
"""Orders alpha at which Renyi divergences are composed. The Skellam bound is proven for integer orders."""


DELTA = 1e-6
"""Delta at which a composed epsilon is reported."""


class ReleaseEvent(NamedTuple):
    """Privacy loss of one release: an event of `dp-accounting` by name, with its parameters, or `total variation`."""

    name: str
    parameters: dict[str, float]


@dataclass(frozen=True)
class Release:
    """One kind of message, sent `count` times. Without an event it has no differential privacy."""

    what: str
    count: int
    event: ReleaseEvent | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the release for a report."""
        name, parameters = self.event or (None, {})
        return {"what": self.what, "count": self.count, "event": name, **parameters}


def laplace(epsilon: float) -> ReleaseEvent:
    """Return the event of Laplace noise of 1/epsilon times the l1 sensitivity."""
    return ReleaseEvent("LaplaceDpEvent", {"noise_multiplier": 1 / epsilon})


def skellam(variance: float, l2: float, l1: float) -> ReleaseEvent:
    r"""Return the event of Skellam noise on integers that differ by (l2, l1) (Agarwal, Kairouz and Liu,
    NeurIPS 2021).

    .. math::
        D_\alpha \le \frac{\alpha \Delta_2^2}{2 \mu} + \frac{(2 \alpha - 1) \Delta_2^2 + 6 \Delta_1}{4 \mu^2}
                 = \xi + \rho \alpha, \quad
        \rho = \frac{\Delta_2^2}{2 \mu} \left(1 + \frac{1}{\mu}\right), \; \xi = \frac{6 \Delta_1 - \Delta_2^2}{4 \mu^2}

    A negative xi is replaced by 0.
    """
    rho = l2**2 / (2 * variance) * (1 + 1 / variance)
    xi = max(0.0, (6 * l1 - l2**2) / (4 * variance**2))
    return ReleaseEvent("ZCDpEvent", {"rho": rho, "xi": xi})


def ternary(r: float) -> ReleaseEvent:
    """Return the event of Def. 4.2 on gradients that differ by 1 in l1, a total variation of at most 1/r."""
    return ReleaseEvent("total variation", {"delta": min(1.0, 1 / r)})


def compose_epsilon(releases: Iterable[Release], delta: float = DELTA) -> float:
    """Compose noisy releases and return their epsilon at `delta`."""
    from dp_accounting import dp_event  # takes a second to load
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(ORDERS)
    for release in releases:
        if release.count:
            assert release.event is not None, f"{release.what} have no differential privacy"
            event = getattr(dp_event, release.event.name)(**release.event.parameters)
            accountant.compose(event, release.count)
    return float(accountant.get_epsilon(delta))


def compose_total_variation(releases: Iterable[Release]) -> float:
    """Compose ternary releases and return their delta at epsilon = 0."""
    return 1 - math.prod(
        (1 - dict(release.event.parameters)["delta"]) ** release.count
        for release in releases
        if release.event
    )
