r"""Scores of an attack on neighbourhoods, and of a guess that needs no attack.

.. math::
    P = \mathrm{mean}_u \frac{|C_u \cap T_u|}{|C_u|}, \quad R = \mathrm{mean}_u \frac{|C_u \cap T_u|}{|T_u|},
    \quad F_1 = \frac{2 P R}{P + R}

C_u are the claimed items of victim u, T_u all its neighbours at the target, also those that no adversary
rated. P is the mean over victims with a claim. F1 is computed from the means, as the paper's Tables 3-5 do up
to rounding.

Claims and truths are boolean matrices (V, M): victims and items of the target.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Scores:
    """Precision, recall and F1 over victims."""

    precision: float
    recall: float
    f1: float

    def to_dict(self) -> dict[str, float]:
        """Return the scores, rounded for a record."""
        return {name: round(value, 6) for name, value in vars(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, float]) -> Scores:
        """Return the scores from a record."""
        return cls(values["precision"], values["recall"], values["f1"])


def score(claims: Tensor, truth: Tensor) -> Scores:
    """Compare claims with the truth, both (V, M), where every victim has a neighbour. Without any claim
    the precision is 0.
    """
    hits = (claims & truth).sum(1).double()
    made = claims.sum(1)
    true = truth.sum(1)
    some = made > 0
    precision = float((hits[some] / made[some]).mean()) if bool(some.any()) else 0.0
    return _scores(precision, float((hits / true).mean()))


def misplaced(claims: Tensor, truth: Tensor) -> Scores:
    """Return the mean scores of each victim's claims against every victim's truth.

    This is the value of the chosen items without knowing whose they are. Scores above it reveal something
    about the victim, even where guessing popular items scores better than both.
    """
    hits = claims.double() @ truth.double().T  # (V, V): claims of one victim against the truth of another
    made = claims.sum(1)
    true = truth.sum(1)
    some = made > 0
    precision = float((hits[some].mean(1) / made[some]).mean()) if bool(some.any()) else 0.0
    return _scores(precision, float((hits.mean(0) / true).mean()))


def _scores(precision: float, recall: float) -> Scores:
    both = precision + recall
    return Scores(precision, recall, 2 * precision * recall / both if both else 0.0)


def claimed(members: Tensor, items: Tensor, count: int) -> Tensor:
    """Return claims (V, `count`) from rows of adversaries (V, m), where -1 means none, and the items (A,)
    they rate.
    """
    victims = torch.arange(len(members), device=members.device).unsqueeze(1).expand_as(members)
    some = members >= 0
    claims = torch.zeros(len(members), count, dtype=torch.bool, device=members.device)
    claims[victims[some], items[members[some]]] = True
    return claims


def popular(claims: Tensor, popularity: Tensor) -> Tensor:
    """Return the guess that needs no attack: for every victim as many items as in `claims`, the most
    popular (M,) first.

    Popularity is public (charts, numbers of reviews), so an attack that does not beat this guess reveals
    nothing.
    """
    order = torch.argsort(popularity, descending=True, stable=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device)
    return rank.unsqueeze(0) < claims.sum(1, keepdim=True)
