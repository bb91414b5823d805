"""Attacks on sums with fake accounts, whose rows show the atoms of the items they rate."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from verfedgnn.research.attacks.attack_scores import claimed
from verfedgnn.research.attacks.round_stacking import unmix, unmix_sums
from verfedgnn.research.attacks.sparse_recovery import equal_size, largest
from verfedgnn.research.attacks.subset_search import SCALES, best_subsets
from verfedgnn.research.attacks.sum_view import SumView

FEW_COLUMNS = 8
"""Dimensions up to which the subset search is fast. In many dimensions its boxes rule nothing out."""


def fake_account_attacks(view: SumView) -> dict[str, Callable[[], Tensor]]:
    """Return the attacks with fake accounts by name. Each computes claims (V, M)."""
    attacks: dict[str, Callable[[], Tensor]] = {}
    if view.phi is not None and view.federation.config.model.dim <= FEW_COLUMNS:
        attacks["colluders, fakes, subset, adjoint"] = lambda: _search_subsets(view, False)
        attacks["colluders, fakes, subset, ridge"] = lambda: _search_subsets(view, True)
    attacks["colluders, fakes, all exchanges"] = lambda: _unmix_one_party(view)
    attacks["party, fakes, all exchanges"] = lambda: _unmix_sum_of_parties(view)
    return attacks


def _search_subsets(view: SumView, minimum_norm: bool) -> Tensor:
    """Return the claims of App. H's subset search on the last exchange."""
    seen = view.first_layer(view.rows(view.exchanges[-1], "colluders", minimum_norm=minimum_norm))
    config = view.federation.config.model
    scale = SCALES["gcn" if config.form == "messages" else config.gnn]
    found = best_subsets(seen[view.victims], seen[view.fakes], scale)
    return claimed(found.members, view.items, view.target_items)


def _unmix_one_party(view: SumView) -> Tensor:
    """Return the claims of colluders, who hold the target's rows of all exchanges."""
    seen = view.stacked_rows("colluders")
    weights = unmix(seen[view.victims], seen[view.fakes[: view.once]], 2 * view.rounding)
    return _claim_largest(view, weights)


def _unmix_sum_of_parties(view: SumView) -> Tensor:
    """Return the claims of a single party, to which the other parties' items are noise."""
    seen = view.stacked_rows("party")
    weights = unmix_sums(seen[view.victims], seen[view.fakes[: view.once]], seen[: view.honest])
    return _claim_largest(view, weights)


def _claim_largest(view: SumView, weights: Tensor) -> Tensor:
    """Return claims (V, M) from the weights (V, A) of the fake accounts' items."""
    claims = torch.zeros(len(weights), view.target_items, dtype=torch.bool)
    claims[:, view.items[: view.once]] = largest(weights, equal_size(weights))
    return claims
