r"""Recovery of items from noisy sums with a model of the noise.

.. math::
    x_u = \frac{1}{\sqrt{|S|}} \sum_{v \in S} a_v + z, \qquad z \sim N(0, \Sigma)

`round_stacking` treats rows as exact, so noise ruins it. Three steps help against noise that is drawn afresh in every exchange:

1. Messages change slowly, so a few time modes hold nearly all of their variance. Noise in the other modes is dropped
   (`time_modes`).
2. The row of a fake account is shrunk according to the noise in a mode, several accounts of an item are averaged, and the
   remaining error of an atom counts as noise of the rows (`smoothed`: errors in variables).
3. Having an item is 0 or 1, mostly 0, and more likely for popular items. Expectation propagation finds the odds of each
   item given a row (`log_odds`); claims follow from the odds without a threshold (`likeliest`).

Who: a single curious party, to which other parties' contributions are noise as well, with about the spread of its own rows
(`spread_of_others`); or colluding parties, who have one party's row with only that party's share of the noise. Needs: fake
accounts at the target, or an insider's knowledge of its atoms in every exchange, the most that can be known; and the
popularity of items, which is public. Tries to learn: which items a user has.

Shapes: R rows, V victims, M items, T exchanges, D columns, C = modes times D.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

MODES = 16
"""Number of time modes to keep. Of 93 exchanges of ML-100K they hold 98 % of the squares of another
party's messages.
"""
SEEN = 0.25
"""Weight of rows' own covariance in `spread_of_others`: a thousand rows say little about hundreds of columns. A compromise: on
ML-100K, seed 0, noise 0.05, with 0 one party's odds had higher AUCs and an insider's claims were worse, with 1/2 the reverse."""
STEPS = 10
"""Number of steps of expectation propagation."""
SOFT = 6
"""Number of steps over which the likelihood is doubled each time; a sharp likelihood from the start would
lock in errors.
"""
TOGETHER = 16
"""Number of victims solved for at a time; each needs a few matrices of all pairs of items."""


def time_modes(own: Tensor, count: int = MODES) -> Tensor:
    """Return orthonormal series (T, m) in which the attacker's own atoms (M, T, D) move most; all parties'
    atoms are trained alike.
    """
    own = own.double()
    moments = torch.einsum("mtd,msd->ts", own, own)
    modes: Tensor = torch.linalg.eigh(moments)[1].flip(1)
    return modes[:, :count]


def in_modes(series: Tensor, modes: Tensor) -> Tensor:
    """Return rows of all exchanges (R, T, D) by their modes (R, C); white noise stays white with the same
    variance.
    """
    return torch.einsum("rtd,tm->rmd", series.double(), modes).flatten(1)


def smoothed(
    rows: Tensor, items: Tensor, own: Tensor, columns: int, variance: float
) -> tuple[Tensor, Tensor]:
    r"""Estimate atoms (M, C) from rows (A, C) of fake accounts with `items` (A,), k of each item, and
    their error variance (C,).

    .. math::
        \hat a = \frac{s}{s + \sigma^2 / k} \bar x, \qquad e = \frac{s \sigma^2 / k}{s + \sigma^2 / k}

    s is the mean square of the attacker's `own` atoms (M', C) in a mode of so many columns.
    """
    count = int(items.max()) + 1
    copies = len(items) / count
    mean = torch.zeros(count, rows.shape[1], dtype=torch.float64).index_add_(0, items, rows.double()) / copies
    size = own.double().view(len(own), -1, columns).square().mean((0, 2)).repeat_interleave(columns)
    left = variance / copies
    return mean * size / (size + left), size * left / (size + left)


def spread_of_others(own: Tensor, rows: Tensor, parties: int, variance: float) -> Tensor:
    """Return the covariance (C, C) of what `parties` other parties add to a row.

    It is estimated from the attacker's `own` rows (N, C) and from the spread of `rows` (N, C), which hold
    these parties and the target with noise of the given variance.
    """
    values, vectors = torch.linalg.eigh(torch.cov(rows.T))
    seen = (vectors * (values - variance).clamp(min=0)) @ vectors.T
    total: Tensor = parties * ((1 - SEEN) * torch.cov(own.T) + SEEN * seen / (parties + 1))
    return total


def log_odds(
    rows: Tensor,
    atoms: Tensor,
    covariance: Tensor,
    share: Tensor,
    watch: Callable[[float], None] = lambda share: None,
) -> Tensor:
    r"""Return the log odds (V, M) that a victim has an item, from rows (V, C), atoms (M, C), Sigma (C, C)
    and item shares (M,).

    .. math::
        p(b \mid x) \propto N(x; \alpha b A, \Sigma) \prod_v \pi_v^{b_v} (1 - \pi_v)^{1 - b_v}, \qquad \alpha = 1 / \sqrt c

    Each item's factor is replaced by a normal one that agrees with it in mean and variance given all others'
    (Minka 2001). `watch` receives the finished share of the victims. c, how many items a victim has, is the sum of their probabilities, and pi grows with it.
    """
    filters = torch.linalg.solve(covariance, atoms.T)
    gram = atoms @ filters
    along = rows.double() @ filters
    found = []
    for start in range(0, len(along), TOGETHER):
        found.append(_propagate(gram, along[start : start + TOGETHER], share.clamp(1e-4, 0.9)))
        watch(min(1.0, (start + TOGETHER) / len(along)))
    return torch.cat(found)


def _propagate(gram: Tensor, along: Tensor, share: Tensor) -> Tensor:
    usual = share.sum().clamp(min=1)
    count = usual.expand(len(along), 1)
    variance = share * (1 - share) / usual
    precision = (1 / variance).expand_as(along)
    shift = (share * usual.rsqrt() / variance).expand_as(along)
    odds = torch.zeros_like(along)
    for step in range(STEPS):
        heard = 2.0 ** min(0, step - SOFT)
        joint = torch.cholesky_inverse(torch.linalg.cholesky(heard * gram + torch.diag_embed(precision)))
        width = joint.diagonal(dim1=1, dim2=2)
        mean = (joint @ (heard * along + shift).unsqueeze(2)).squeeze(2)
        spread = 1 / (1 / width - precision).clamp(
            min=1e-6 / width
        )  # of an item's weight, from everything but its own factor
        centre = spread * (mean / width - shift)
        weight = count.rsqrt()
        odds = (share * count / usual).clamp(max=0.95).logit() + (
            weight * centre - weight.square() / 2
        ) / spread
        likely = odds.sigmoid()
        count = (0.5 * (count + likely.sum(1, keepdim=True))).clamp(min=1)
        certain = (weight.square() * likely * (1 - likely)).clamp(min=1e-4 * weight.square())
        told = (1 / certain - 1 / spread).clamp(min=1e-2)
        moved = weight * likely * (told + 1 / spread) - centre / spread
        precision = 0.5 * (precision + told)
        shift = 0.5 * (shift + moved)
    return odds


def likeliest(odds: Tensor) -> Tensor:
    r"""Return claims (V, M) from log odds: for each victim the n likeliest items, where n maximises the
    expected F1.

    .. math::
        n = \arg\max_n \frac{2 \sum_{i \le n} p_{(i)}}{n + \sum_i p_i}
    """
    p, order = odds.sigmoid().sort(dim=1, descending=True, stable=True)
    number = torch.arange(1, p.shape[1] + 1)
    best = (p.cumsum(1) / (number + p.sum(1, keepdim=True))).argmax(1, keepdim=True)
    return torch.zeros_like(odds, dtype=torch.bool).scatter_(1, order, number <= best + 1)
