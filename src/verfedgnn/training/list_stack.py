r"""The gate of lists: how a party mixes popularity, EASE, its ranking model alone and the federated one.

.. math::
    s_{uv} = \sum_k w_k f_k(u, v), \qquad w_k \ge 0

The party chooses w by NDCG@20 on its own validation part: it starts from its best single model, or from the mixture that it has
without the federation, and takes a change of one weight only if NDCG rises by more than a fraction of its standard error. So
the noise of a small validation part does not choose, and the federated model counts only where it helps. Newcomers, who have no training rating at the party, have weights of their own where the validation part has
enough of them. Finally all scores are multiplied by one number, so that their softmax gives the likeliest shares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from verfedgnn.core.list_metrics import list_quality
from verfedgnn.core.pairs import Pairs, PartyInput
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.training.rating_stack import Stacked, mix_models
from verfedgnn.training.simple_models import liked, training_counts

STEPS = (0.0, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.5, 4.0, 8.0)
"""Weights that are tried, relative to the spread of a model's scores."""
PASSES = 2
"""How often every weight is tried."""
MARGIN = 0.2
"""Standard errors by which NDCG must rise."""
FEWEST_NEWCOMERS = 50
"""With fewer newcomers in the validation part, they have the weights of the other users."""
MOST_SCORES = 1 << 24
"""Scores of one model that are held while weights are chosen; more users than that are sampled."""
K = 20


@dataclass(frozen=True)
class _Judged:
    """Score matrices of some validation users, one per model, and what they want."""

    scores: list[Tensor]
    """(n, M_p) each; items of the training part have minus infinity in the first one."""
    relevant: Tensor
    hidden: Tensor

    def ndcg(self, weights: Sequence[float]) -> Tensor:
        """Return NDCG@20 of each user for the weighted sum."""
        return list_quality(self.total(weights), self.relevant, K)[1]

    def total(self, weights: Sequence[float]) -> Tensor:
        """Return the weighted sum of the scores."""
        total = torch.zeros_like(self.scores[0])
        for weight, scores in zip(weights, self.scores, strict=True):
            if weight:
                total.add_(scores, alpha=weight)
        return total.masked_fill_(self.hidden, -torch.inf)


def stack_lists(models: Mapping[str, PartyModel], data: PartyInput, start: Stacked | None = None) -> Stacked:
    """Mix `models` for one party, from the mixture `start` of some of them; the first one, popularity, is the simplest."""
    names = list(models)
    counts = training_counts(data)
    wanted = liked(data.valid, data.scale)
    new = counts[wanted.user.long()] == 0
    every = list(models.values())
    usual = _judge(every, data, wanted.take(~new))
    known = _search(usual, None if start is None else [start.known.get(name, 0.0) for name in names])
    newcomers = known
    if len(torch.unique(wanted.user[new])) >= FEWEST_NEWCOMERS:
        first = None if start is None else [start.newcomers.get(name, 0.0) for name in names]
        newcomers = _search(_judge(every, data, wanted.take(new)), first)
    temperature = _temperature(usual, known)
    known = [weight * temperature for weight in known]
    newcomers = [weight * temperature for weight in newcomers]
    model = mix_models(every, known, newcomers, counts)
    return Stacked(model, dict(zip(names, known, strict=True)), dict(zip(names, newcomers, strict=True)))


def _judge(models: Sequence[PartyModel], data: PartyInput, wanted: Pairs) -> _Judged:
    """Score the catalogue for the users of `wanted`, or for a sample of them."""
    users = torch.unique(wanted.user).long()
    most = max(1, MOST_SCORES // data.items)
    if len(users) > most:  # every n-th, so that the choice depends on nothing but the data
        users = users[torch.linspace(0, len(users) - 1, most, device=users.device).long()]
    row_of = torch.full((data.users,), -1, dtype=torch.long, device=users.device)
    row_of[users] = torch.arange(len(users), device=users.device)
    shape = (len(users), data.items)
    marks = []
    for pairs in (wanted, data.train):
        mark = torch.zeros(shape, dtype=torch.bool, device=users.device)
        row = row_of[pairs.user.long()]
        mark[row[row >= 0], pairs.item.long()[row >= 0]] = True
        marks.append(mark)
    return _Judged([model.score(users) for model in models], *marks)


def _search(judged: _Judged, start: Sequence[float] | None) -> list[float]:
    """Return the weights with the best NDCG that a search along one weight at a time finds."""
    if not len(judged.relevant):
        return list(start or [1.0] + [0.0] * (len(judged.scores) - 1))
    spread = [max(float(scores.std()), 1e-9) for scores in judged.scores]
    single = [
        [1 / spread[k] if k == chosen else 0.0 for k in range(len(spread))] for chosen in range(len(spread))
    ]
    weights = single[0] if start is None else _normalise(start, spread)
    best = judged.ndcg(weights)
    for candidate in single[1:]:
        weights, best = _better(judged, candidate, weights, best)
    for _ in range(PASSES):
        for k in range(len(spread)):
            for step in STEPS:
                candidate = [*weights]
                candidate[k] = step / spread[k]
                if any(candidate):
                    weights, best = _better(judged, candidate, weights, best)
    return weights


def _normalise(weights: Sequence[float], spread: Sequence[float]) -> list[float]:
    """Return the weights times a factor, so that the largest part has a spread of 1 and can be compared with `STEPS`."""
    largest = max(weight * each for weight, each in zip(weights, spread, strict=True))
    return [weight / largest if largest else 0.0 for weight in weights]


def _better(
    judged: _Judged, candidate: list[float], weights: list[float], best: Tensor
) -> tuple[list[float], Tensor]:
    """Return the candidate and its NDCG if it is better than the present weights beyond the margin, else these."""
    found = judged.ndcg(candidate)
    change = found - best
    error = float(change.std()) / len(change) ** 0.5 if len(change) > 1 else float("inf")
    return (candidate, found) if float(change.mean()) > max(MARGIN * error, 1e-6) else (weights, best)


def _temperature(judged: _Judged, weights: Sequence[float]) -> float:
    """Return the factor on all scores at which the softmax over the catalogue is likeliest."""
    if not len(judged.relevant):
        return 1.0
    total = judged.total(weights)
    row, item = judged.relevant.nonzero(as_tuple=True)

    def loss(factor: float) -> float:
        return float((torch.logsumexp(total * factor, 1)[row] - total[row, item] * factor).sum())

    wanted = torch.isfinite(total[row, item])  # an item of the validation part that was rated twice is hidden
    row, item = row[wanted], item[wanted]
    factors = [float(2.0 ** (step / 2)) for step in range(-14, 15)]
    return min(factors, key=loss)
