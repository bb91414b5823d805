"""Attacks on sums by insiders, who know the atoms of the target's items."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from verfedgnn.research.attacks.collusion import honest_sum
from verfedgnn.research.attacks.round_stacking import users_of_items
from verfedgnn.research.attacks.sparse_recovery import Recovered, equal_size, largest, nnls, omp, polish
from verfedgnn.research.attacks.sum_view import SumView, Who


def insider_attacks(view: SumView) -> dict[str, Callable[[], Tensor]]:
    """Return the attacks of insiders by name. Each computes claims (V, M)."""

    def pursued(x: Tensor, atoms: Tensor) -> Recovered:
        return omp(x, atoms, noise=1.1 * view.rounding)

    def polished(x: Tensor, atoms: Tensor) -> Recovered:
        weights = pursued(x, atoms).weights
        return polish(x, atoms, largest(weights, equal_size(weights)), noise=view.rounding)

    def recover(
        who: Who, method: Callable[[Tensor, Tensor], Recovered], minimum_norm: bool = False
    ) -> Callable[[], Tensor]:
        return lambda: _recover_items(view, who, method, minimum_norm)

    attacks: dict[str, Callable[[], Tensor]] = {
        "colluders, insider, nnls": recover("colluders", nnls),
        "colluders, insider, omp": recover("colluders", pursued),
        "party, insider, nnls": recover("party", nnls),
        "party, insider, omp": recover("party", pursued),
        "colluders, insider, polished": recover("colluders", polished),
    }
    if view.phi is not None:
        attacks["colluders, insider, omp, ridge"] = recover("colluders", pursued, True)
        attacks["colluders, insider, all exchanges"] = lambda: _unproject_items(view)
    return attacks


def _recover_items(
    view: SumView, who: Who, method: Callable[[Tensor, Tensor], Recovered], minimum_norm: bool
) -> Tensor:
    """Return the claims (V, M) of sparse recovery from the last exchange."""
    atoms, start, stop = _known_atoms(view, who)
    seen = view.first_layer(view.rows(view.exchanges[-1], who, minimum_norm=minimum_norm))
    weights = method(seen[view.victims], atoms).weights
    return largest(weights, equal_size(weights))[:, start:stop]


def _known_atoms(view: SumView, who: Who) -> tuple[Tensor, int, int]:
    """Return the atoms (m, D) of all items that remain in the last sum, and the range of the target's items."""
    last = view.exchanges[-1]
    inside = (
        [view.target] if who == "colluders" else [p for p in range(len(last.knows)) if p != view.attacker]
    )
    atoms = [view.federation.parties[p].atoms(last.knows[p]) for p in inside]
    start = sum(len(atoms[i]) for i, p in enumerate(inside) if p < view.target)
    return torch.cat(atoms), start, start + view.target_items


def _unproject_items(view: SumView) -> Tensor:
    """Return the claims (V, M) of colluders who know the target's atoms in every projected exchange."""
    assert view.phi is not None
    colluders = [p for p in range(len(view.federation.parties)) if p != view.target]
    bits = view.federation.config.exchange.bits
    target = view.federation.parties[view.target]
    y = [
        honest_sum(each.start, [each.sent[p] for p in colluders], bits, view.columns)[0]
        for each in view.exchanges
    ]
    atoms = [target.atoms(each.knows[view.target]) for each in view.exchanges]
    return users_of_items(y, atoms, view.phi)[view.victims]
