r"""The mixtures of the gate: each party's models of ratings, or of lists, as a weighted sum.

For ratings, with :math:`f_0` the party's own means,

.. math::
    \hat r = f_0 + \sum_k w_k (f_k - f_0), \qquad
    w = \arg\min_{w \ge 0} \sum_{\text{own validation}} (\hat r - r)^2 + \rho \sigma^2 |w - w_0|^2

The prior w_0 gives all models the same weight, so that the noise of a small validation part does not decide. Newcomers, users without
a training rating at the party, have separate weights. Their prior starts from those of the other users; a model trained alone knows
nothing about newcomers, so its weight goes to the federated models.

For lists,

.. math::
    s_{uv} = \sum_k w_k f_k(u, v), \qquad w_k \ge 0

The party chooses w by NDCG@20. It starts from its best single model, or from the mixture that it has without the federation, and
accepts a change of one weight only if NDCG rises by more than a fraction of its standard error. Finally all scores are multiplied by
one factor, the temperature, which maximises the likelihood of the softmax. Newcomers have separate weights for popularity and the
federated model, which start from a mixture that serves newcomers well on all data sets at hand (`NEWCOMER_START`) and change only for
clear evidence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.core.metrics import CHUNK_SCORES, list_quality, sample_users
from verfedgnn.core.pairs import Pairs, PartyInput
from verfedgnn.runs.party_model import MixedUsers, PartyModel
from verfedgnn.training.own_models import liked, training_counts

Weights = dict[str, float]

FEDERATED = ("federated means", "federated", "federated raters")
"""Names of the models in a mixture that come from the federation."""
PRIOR = 10.0
"""rho: the prior counts as much as ten ratings on which two models differ by the typical error."""
NEWCOMER_PRIOR = 200.0
"""The same for newcomers. The validation part has few of them, mostly users with few ratings, so they seldom change the prior."""


@dataclass(frozen=True)
class Mixture:
    """A weighted sum of models as one model, and the weight of each by name."""

    model: PartyModel
    known: Weights
    """Weights for users with training ratings at the party."""
    newcomers: Weights
    """Weights for users without."""

    @classmethod
    def of(
        cls,
        models: Mapping[str, PartyModel],
        known: Sequence[float],
        newcomers: Sequence[float],
        counts: Tensor,
    ) -> Mixture:
        """Mix `models` into a product of longer vectors; `counts` are each user's training ratings at the party (N,)."""
        weights = list(zip(known, newcomers, strict=True))
        parts = [pair for pair in zip(models.values(), weights, strict=True) if any(pair[1])]
        users = MixedUsers([model.vectors for model, _ in parts], [own for _, own in parts], counts == 0)
        scores = None
        for model, (usual, _) in parts:
            if model.item_scores is not None:
                scores = model.item_scores.scaled(usual)  # a newcomer has no items that could score others
        items = torch.cat([model.items for model, _ in parts], 1)
        mixed = PartyModel(users, items, list(models.values())[-1].embeddings, scores)
        return cls(mixed, dict(zip(models, known, strict=True)), dict(zip(models, newcomers, strict=True)))


def stack_ratings(models: Mapping[str, PartyModel], valid: Pairs, counts: Tensor) -> Mixture:
    """Return the best mixture of `models` for one party; the first model is the simple reference f_0.

    `counts` is the number of training ratings of each user at the party (N,).
    """
    names = list(models)
    new = (counts[valid.user.long()] == 0).cpu().numpy()
    predicted = np.stack([model.predict(valid).cpu().numpy() for model in models.values()], 1)
    rating = valid.rating.cpu().numpy().astype(np.float64)
    equal = np.full(len(names) - 1, 1 / len(names))
    known = _solve(predicted[~new], rating[~new], equal, PRIOR)
    # newcomers before evidence: the weights of the federated models, which share the others' weight, up to 1
    prior = np.where([name in FEDERATED for name in names[1:]], known, 0.0)
    if prior.sum():
        prior = prior * min(known.sum(), 1.0) / prior.sum()
    newcomers = _solve(predicted[new], rating[new], prior, NEWCOMER_PRIOR)
    return Mixture.of(models, _shares(known), _shares(newcomers), counts)


def _solve(
    predicted: NDArray[np.float64], rating: NDArray[np.float64], start: NDArray[np.float64], prior: float
) -> NDArray[np.float64]:
    """Return the weights w >= 0 of all models but the first, pulled towards `start`."""
    if not len(rating) or not len(start):
        return start
    left = rating - predicted[:, 0]
    change = predicted[:, 1:] - predicted[:, :1]
    pull = np.sqrt(prior * np.square(left).mean())
    matrix = np.concatenate([change, pull * np.eye(len(start))])
    target = np.concatenate([left, pull * start])
    from scipy.optimize import nnls  # half a second, which commands that stack nothing do not spend

    return np.asarray(nnls(matrix, target)[0])


def _shares(weights: NDArray[np.float64]) -> list[float]:
    """Return the coefficient of each model; that of the reference f_0 is 1 minus the sum of the others."""
    return [float(1 - weights.sum()), *(float(weight) for weight in weights)]


# -- lists --------------------------------------------------------------------------------

STEPS = (0.0, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.5, 4.0, 8.0)
"""Weights that are tried, relative to the spread of a model's scores."""
PASSES = 2
"""Number of searches over all weights."""
MARGIN = 0.2
"""Least rise of NDCG that is accepted, in standard errors."""
FEWEST_NEWCOMERS = 30
"""Fewest newcomers that can change their weights."""
NEWCOMER_START = 2.0
"""Weight of the federated model in lists for newcomers before any evidence, if popularity has 1, both relative to their spread."""
NEWCOMER_MARGIN = 2.0
"""Least rise of newcomers' NDCG that changes their weights, in standard errors."""
CANDIDATES = 256
"""Items of each model's list that can get into a user's list of the mixture. Beyond them, a large catalogue is not searched."""
K = 20
"""Length of the lists that NDCG judges."""


@dataclass(frozen=True)
class JudgedUsers:
    """Scores of the judged validation users by each model, and the items that these users want."""

    scores: list[Tensor]
    """One matrix per model, over each user's candidates (n, C)."""
    wanted: tuple[Tensor, Tensor]
    """Rows of users, and the columns of the items that they want."""
    hidden: Tensor
    """Whether a candidate is not ranked, because it is in the user's training part or fills a row (n, C)."""
    spread: list[float]
    """Standard deviation of each model's scores of all items."""

    def ndcg(self, weights: Sequence[float]) -> Tensor:
        """Return NDCG@20 of each user for the weighted sum."""
        return list_quality(self.total(weights), *self.wanted, K)[1]

    def total(self, weights: Sequence[float]) -> Tensor:
        """Return the weighted sum of the scores."""
        total = torch.zeros_like(self.scores[0])
        for weight, scores in zip(weights, self.scores, strict=True):
            if weight:
                total.add_(scores, alpha=weight)
        return total.masked_fill_(self.hidden, -torch.inf)


def stack_lists(models: Mapping[str, PartyModel], data: PartyInput, start: Mixture | None = None) -> Mixture:
    """Return the best mixture of `models` for one party; the first model is the simplest, popularity.

    The search begins with the mixture `start` of some of the models, by default with the best single model.
    """
    names = list(models)
    counts = training_counts(data)
    wanted = liked(data.valid, data.scale)
    new = counts[wanted.user.long()] == 0
    usual = judge_users(list(models.values()), data, wanted.take(~new))
    first = None if start is None else [start.known.get(name, 0.0) for name in names]
    known = search_weights(usual, first, MARGIN)
    units = np.eye(len(names))
    popular, last = (float(usual.ndcg(units[k].tolist()).mean()) for k in (0, -1))
    for_newcomers = _newcomer_weights(models, data, wanted.take(new), helps=not last < popular)
    factor = _temperature(usual, known)
    newcomers = [factor * for_newcomers.get(name, 0.0) for name in names]
    return Mixture.of(models, [factor * weight for weight in known], newcomers, counts)


def _newcomer_weights(
    models: Mapping[str, PartyModel], data: PartyInput, wanted: Pairs, *, helps: bool
) -> Weights:
    """Return the weights for newcomers; `wanted` holds the liked validation ratings of newcomers.

    Without enough of them, the federated model takes part if it `helps` known users more than popularity does.
    """
    usable = [name for name in models if name != "EASE"]  # EASE needs a user's own items
    names = list(dict.fromkeys([usable[0], usable[-1]]))
    judged = judge_users([models[name] for name in names], data, wanted)
    if not len(judged.hidden):
        anybody = torch.arange(data.users, device=data.train.user.device)[:FEWEST_NEWCOMERS]
        judged = replace(judged, spread=[_spread(models[name].score(anybody)) for name in names])
    priors = [{"federated": NEWCOMER_START, usable[0]: 1.0}, {usable[0]: 1.0}]
    spreads = dict(zip(names, judged.spread, strict=True))
    options = [[prior.get(name, 0.0) / spreads[name] for name in names] for prior in priors]
    start = options[0 if helps else 1]
    if len(judged.hidden) >= FEWEST_NEWCOMERS:
        start = max(options, key=lambda weights: float(judged.ndcg(weights).mean()))
        start = search_weights(judged, start, NEWCOMER_MARGIN)
    return dict(zip(names, _normalise(start, judged.spread), strict=True))


def judge_users(models: Sequence[PartyModel], data: PartyInput, wanted: Pairs) -> JudgedUsers:
    """Score each user's candidates with each model, for the users of `wanted` or for a sample of them."""
    users = sample_users(torch.unique(wanted.user).long(), data.items)
    row_of = torch.empty(data.users, dtype=torch.long, device=users.device)

    def cells(pairs: Pairs, chunk: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows in the chunk of users and the items of the pairs that are in it."""
        row_of.fill_(-1)[chunk] = torch.arange(len(chunk), device=users.device)
        row = row_of[pairs.user.long()]
        return row[row >= 0], pairs.item.long()[row >= 0]

    few = data.items <= CANDIDATES * len(models)
    size = max(1, CHUNK_SCORES // max(1, data.items))
    spread: list[float] = []
    parts = []
    for start in range(0, max(1, len(users)), size):
        chunk = users[start : start + size]
        scores = [model.score(chunk) for model in models]
        spread = spread or [_spread(one) for one in scores]
        hidden = torch.zeros((len(chunk), data.items), dtype=torch.bool, device=users.device)
        hidden[cells(data.train, chunk)] = True
        candidate = torch.full_like(hidden, few)
        candidate[cells(wanted, chunk)] = True
        for one in () if few else scores:
            candidate.scatter_(1, one.masked_fill(hidden, -torch.inf).topk(CANDIDATES, 1).indices, True)
        row, item = candidate.nonzero(as_tuple=True)
        parts.append((row + start, item, *(table[row, item] for table in (hidden, *scores))))
    row, item, *tables = (torch.cat(flat) for flat in zip(*parts, strict=True))
    count = torch.bincount(row, minlength=len(users))
    column = torch.arange(len(row), device=users.device) - (count.cumsum(0) - count)[row]
    padded = []
    for flat in tables:
        table = torch.ones((len(users), max(count.tolist(), default=0)), device=users.device).to(flat)
        table[row, column] = flat
        padded.append(table)
    pairs = torch.unique(torch.stack(cells(wanted, users)), dim=1)
    place = torch.searchsorted(row * data.items + item, pairs[0] * data.items + pairs[1])
    return JudgedUsers(padded[1:], (pairs[0], column[place]), padded[0], spread)


def _spread(scores: Tensor) -> float:
    """Return the standard deviation of a model's scores, at least a tiny number."""
    return max(float(scores.std()), 1e-9) if scores.numel() > 1 else 1e-9


def search_weights(judged: JudgedUsers, start: Sequence[float] | None, margin: float) -> list[float]:
    """Search along one weight at a time and return the weights with the best NDCG."""
    if not len(judged.hidden):
        return list(start or [1.0] + [0.0] * (len(judged.scores) - 1))
    spread = judged.spread
    single = np.diag(1 / np.array(spread)).tolist()
    weights = single[0] if start is None else _normalise(start, spread)
    best = judged.ndcg(weights)
    for candidate in single[1:]:
        weights, best = _better(judged, candidate, weights, best, margin)
    tried = [weights]
    """Weights that are not better than the best ones."""
    for _ in range(PASSES):
        for k in range(len(spread)):
            for step in STEPS:
                candidate = [*weights]
                candidate[k] = step / spread[k]
                if any(candidate) and candidate not in tried:
                    weights, best = _better(judged, candidate, weights, best, margin)
                    tried = [candidate] if weights is candidate else [*tried, candidate]
    return weights


def _normalise(weights: Sequence[float], spread: Sequence[float]) -> list[float]:
    """Scale the weights so that the largest weighted model has a spread of 1, the unit of `STEPS`."""
    largest = max(weight * each for weight, each in zip(weights, spread, strict=True))
    return [weight / largest if largest else 0.0 for weight in weights]


def _better(
    judged: JudgedUsers, candidate: list[float], weights: list[float], best: Tensor, margin: float
) -> tuple[list[float], Tensor]:
    """Return `candidate` and its NDCG if it exceeds `best` by the margin, else `weights` and `best`."""
    found = judged.ndcg(candidate)
    change = found - best
    error = float(change.std()) / len(change) ** 0.5 if len(change) > 1 else float("inf")
    return (candidate, found) if float(change.mean()) > max(margin * error, 1e-6) else (weights, best)


def _temperature(judged: JudgedUsers, weights: Sequence[float]) -> float:
    """Return the factor on all scores that maximises the likelihood of the wanted items under a softmax."""
    if not len(judged.hidden):
        return 1.0
    total = judged.total(weights)
    row, item = judged.wanted

    def loss(factor: float) -> float:
        return float((torch.logsumexp(total * factor, 1)[row] - total[row, item] * factor).sum())

    wanted = torch.isfinite(total[row, item])  # an item of the validation part that was rated twice is hidden
    row, item = row[wanted], item[wanted]
    factors = [float(2.0 ** (step / 2)) for step in range(-14, 15)]
    return min(factors, key=loss)
