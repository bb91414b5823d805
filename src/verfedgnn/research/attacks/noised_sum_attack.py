"""The attack on noised sums by attackers who model the noise (`noisy_sums`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from verfedgnn.research.attacks.collusion import Exposure
from verfedgnn.research.attacks.noisy_sums import in_modes, log_odds, smoothed, spread_of_others, time_modes
from verfedgnn.research.attacks.sum_view import SumView, Who


def item_odds(
    view: SumView,
    who: Who,
    how: Literal["insider", "fakes"],
    share: Tensor,
    watch: Callable[[float], None] = lambda share: None,
) -> Tensor:
    """Return the log odds (V, M) that each victim has each item, from the noised sums of all exchanges.

    `share` (M,) is the share of users who have each item. `watch` receives the finished share of the victims.
    """
    config = view.federation.config.exchange
    assert config.mode == "noised"
    parties = view.federation.parties
    share = share.double()
    exposure = Exposure(len(parties), len(parties) - 1 if who == "colluders" else 1)
    variance = config.noise**2 * exposure.noise_left + exposure.summed * view.rounding**2
    own = view.atoms(view.attacker)
    modes = time_modes(own)
    own = in_modes(own, modes)
    rows = in_modes(
        torch.stack([view.first_layer(view.rows(each, who)) for each in view.exchanges], 1), modes
    )
    spread = variance * torch.eye(rows.shape[1], dtype=rows.dtype)
    items = view.items[: view.once]
    if how == "insider":
        items = torch.arange(len(share))
        atoms = in_modes(view.atoms(view.target), modes)
    else:
        place = torch.arange(len(view.fakes)) % view.once
        atoms, wrong = smoothed(rows[view.fakes], place, own, rows.shape[1] // modes.shape[1], variance)
        spread = spread + torch.diag(wrong)
    rows = rows[: view.honest]
    if who == "party":
        me = parties[view.attacker]
        mine = in_modes(
            torch.stack([me.neighbourhood(each.knows[view.attacker]) for each in view.exchanges], 1), modes
        )
        spread = spread + spread_of_others(mine[: view.honest], rows, exposure.summed - 1, variance)
        rows = rows - rows.mean(0) + share[items] @ atoms * share.sum().clamp(min=1).rsqrt()
    odds = share.clamp(1e-4, 0.9).logit().repeat(len(view.victims), 1)
    odds[:, items] = log_odds(rows[view.victims], atoms, spread, share[items], watch)
    return odds
