r"""Measures of how well a score tells two kinds apart: AUC with its standard error, best advantage, rank
correlation.

.. math::
    \mathrm{AUC} = P(s_1 > s_0) + \tfrac12 P(s_1 = s_0), \qquad \mathrm{advantage} = \max_t \, \mathrm{TPR}(t) - \mathrm{FPR}(t)

1/2 and 0 is no better than guessing, 1 and 1 is certainty.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from verfedgnn.core.errors import DataError


@dataclass(frozen=True)
class Separation:
    """Separation of n1 positives from n0 negatives by a score."""

    auc: float
    auc_error: float
    """Standard error by DeLong et al. (1988), for independent scores."""
    advantage: float
    """TPR - FPR on one half at the threshold that was best on the other half, which avoids an optimistic
    estimate.
    """
    advantage_error: float
    """Binomial standard error of the advantage."""
    positives: int
    negatives: int

    def to_dict(self) -> dict[str, float]:
        """Return the figures, rounded for a record."""
        return {name: round(value, 6) for name, value in vars(self).items()}


def separate(score: Tensor, truth: Tensor, generator: torch.Generator) -> Separation:
    """Measure how well higher scores (n,) tell positives from negatives in `truth` (n,); `generator` draws
    the halves.
    """
    score = score.double().cpu()
    truth = truth.bool().cpu()
    area, error = auc(score, truth)
    half = torch.rand(len(score), generator=generator) < 0.5
    one, other = (_half(score, truth, chosen) for chosen in (half, ~half))
    threshold = _best_threshold(*one)
    yes = other[0][other[1]] >= threshold
    no = other[0][~other[1]] >= threshold
    tpr, fpr = (float(found.double().mean()) if len(found) else 0.0 for found in (yes, no))
    spread = math.sqrt(tpr * (1 - tpr) / max(1, len(yes)) + fpr * (1 - fpr) / max(1, len(no)))
    return Separation(area, error, tpr - fpr, spread, int(truth.sum()), int((~truth).sum()))


def auc(score: Tensor, truth: Tensor) -> tuple[float, float]:
    """Return the area under the curve and its standard error, from scores and truths (n,)."""
    yes = score[truth].double()
    no = score[~truth].double()
    if not len(yes) or not len(no):
        raise DataError("AUC needs positives and negatives, but one of the two is empty")
    together = ranks(torch.cat([yes, no]))
    above = (together[: len(yes)] - ranks(yes)) / len(
        no
    )  # for each positive: the share of negatives below it
    below = 1 - (together[len(yes) :] - ranks(no)) / len(yes)
    variance = sum(float(part.var()) / len(part) for part in (above, below) if len(part) > 1)
    return float(above.mean()), math.sqrt(variance)


def auc_within(score: Tensor, yes: Tensor, no: Tensor) -> float | None:
    """Return the area under the curve within columns of scores (V, M), over all pairs of `yes` and `no`
    (V, M) in one column.

    A value that is the same for a whole column, such as an item's popularity, has no influence. None if no
    column has both.
    """
    area = 0.0
    pairs = 0
    for column, one, other in zip(score.T, yes.T, no.T, strict=True):
        count = int(one.sum()) * int(other.sum())
        if count:
            some = one | other
            area = area + count * auc(column[some], one[some])[0]
            pairs = pairs + count
    return area / pairs if pairs else None


def ranks(values: Tensor) -> Tensor:
    """Return ranks from 1 on (n,); equal values share their mean rank."""
    _, place, count = torch.unique(values, return_inverse=True, return_counts=True)
    middle: Tensor = count.cumsum(0).double() - (count.double() - 1) / 2
    return middle[place]


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Return Spearman's correlation of (n,) and (n,); 0 if one of them is constant."""
    x, y = (ranks(values.double().cpu()) for values in (a, b))
    x = x - x.mean()
    y = y - y.mean()
    length = float(x.norm() * y.norm())
    return float(x @ y) / length if length else 0.0


def _half(score: Tensor, truth: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    return score[chosen], truth[chosen]


def _best_threshold(score: Tensor, truth: Tensor) -> float:
    """Return the score from which on to say yes; infinity if no threshold is better than never."""
    if not bool(truth.any()) or bool(truth.all()):
        return math.inf
    order = torch.argsort(score, descending=True, stable=True)
    sorted_score = score[order]
    sorted_truth = truth[order]
    gap = sorted_truth.cumsum(0) / sorted_truth.sum() - (~sorted_truth).cumsum(0) / (~sorted_truth).sum()
    last = torch.cat(
        [sorted_score[1:] != sorted_score[:-1], torch.ones(1, dtype=torch.bool)]
    )  # equal scores go together
    gap = gap.masked_fill(~last, -torch.inf)
    best = int(gap.argmax())
    return float(sorted_score[best]) if float(gap[best]) > 0 else math.inf
