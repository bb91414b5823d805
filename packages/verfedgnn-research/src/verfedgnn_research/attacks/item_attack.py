r"""Attackers who know the solver read which items a user has at another party from the sums of all rounds.

.. math::
    g_u^t = \sum_{v \in N(u)} x_v^t \, (r_{uv} - \hat r_{uv}^t) / \sigma^2

The users' vectors are public. So with an item's vector, its prediction is known, and a row is linear in two unknowns for each item:
whether the user has it, m, and m times the rating. T rounds of C columns give T C equations for 2 M unknowns. The second model adds
columns with the same unknowns. For lists, the only unknown is the weight of a pair.

Of models trained by steps, a row is taken as a sum of item embeddings with unknown weights.

Who: one party, or all parties but the target. Needs: the sums of all rounds, and what items add to rows in every round (`ItemSeries`),
from an insider at the target, or from fake accounts there with one item each: the last column of a fake account's row is its error, so
the others divided by it are the item's vector.

A user's unknowns are solved for with a normal prior. What other parties and items without candidates add is taken as normal noise with
the covariance of the attacker's own rows.

Shapes: V victims, M candidate items of the target, T rounds, C columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.core.errors import ConfigError
from verfedgnn.data import PartyData
from verfedgnn.runs.prepared_data import split_ratings
from verfedgnn_research.attacks.adversaries import plant
from verfedgnn_research.attacks.paper_attacks import choose_victims
from verfedgnn_research.attacks.recording import RecordedFederation, record_federation
from verfedgnn_research.attacks.release_view import WHO, ItemSeries, ReleaseView, Who, watch_releases
from verfedgnn_research.attacks.separation import auc, auc_within, ranks

READ_NOISE = 0.1
"""Variance of the columns of the second model that chance in reading adds, as a share of their mean square."""
MODEL_NOISE = 0.003
"""Variance that the model of a row leaves open, as a share of its mean square."""
DIRECTIONS = 200
"""Largest number of directions of what other parties add."""
MEMORY, NOISY_MEMORY, STEPS_MEMORY = 0.3, 0.8, 3.0
"""Rounds over which estimates from fake accounts are smoothed: of solved models without and with noise, and of others."""
TASTES = 1.0
"""Variance of a rating around the mean of its item, in units of the party's scale."""
LIKED = (0.8, 0.08)
"""Mean and variance of what a pair adds in lists, as a share of what a liked one adds."""
KNOWN = 0.5
"""Share of an item's users that readers of the public tables know from elsewhere."""
RIDGE = 0.1
"""Ridge with which they fit an item to the tables, as a share of the mean square of a column times the number of users."""
OWN_ROWS = 1_500
"""Largest number of the attacker's own rows from which a covariance is estimated."""
Figures = dict[str, float | None]


def attack_items(
    parties: Sequence[PartyData],
    config: Config,
    *,
    rounds: int,
    parts: Sequence[NDArray[np.int8]] | None = None,
    attacker: int = 0,
    target: int = 1,
    victims: int = 200,
    items: int = 300,
    method: str = "",
    watch: Callable[[int, int], None] = lambda round, rounds: None,
) -> dict[str, Figures]:
    """Record `rounds` of a training with one fake account for each of the target's most rated `items`, and return AUCs by attack.

    - `party, fakes` and `party, insider`: one party, `colluders, ...`: all parties but the target, if there are more than two.
    - `public tables`: anyone who knows half of an item's users, and reads the others from the final public tables.
    - `party, both trainings`: one party with fake accounts in the judged training and in the one on all ratings asks which items a user
      has rated since: `taste` is how well the first training answers, which has not seen them, `within` the second, and `held` what the
      second adds.
    - `one rating`: a party that knows everything but whether one rating is in the training part. `shift` is the median distance of
      the two cases, in standard deviations.

    `judge_odds` explains the figures. With `method`, only attacks whose names contain it are run.
    """
    rng = np.random.default_rng([config.seed, 7])
    if parts is None:
        parts = [split_ratings(party, config.split, config.seed) for party in parties]
    counts = np.bincount(parties[target].ratings.item, minlength=parties[target].ratings.n_items)
    candidates = np.sort(np.argsort(-counts, kind="stable")[:items])
    planted = plant(parties, parts, target=target, items=candidates)
    federation = record_federation(planted.parties, config, parts=planted.parts)
    whole = federation.parties[target].neighbours[: planted.honest]
    kept = torch.from_numpy(candidates)
    truth = whole[:, kept]
    chosen = torch.from_numpy(choose_victims(truth, victims, rng))
    rows = torch.cat([chosen, torch.from_numpy(planted.users)])
    view = watch_releases(
        federation, attacker=attacker, target=target, chosen=rows, rounds=max(2, rounds), watch=watch
    )
    public = federation.coordinator.model.views(federation.coordinator.public)
    held = held_out_items(federation, target)[: planted.honest, kept]
    popularity = truth.sum(0)
    share = (popularity / len(truth)).double().clamp(1e-4, 0.9)
    elsewhere = [p for p in range(len(parties)) if p not in (attacker, target)]
    alone = (
        ~torch.stack([federation.parties[p].neighbours[chosen].any(1) for p in elsewhere]).any(0)
        if elsewhere
        else None
    )
    missed = 1 - float(truth.sum() / whole.sum())
    found: dict[str, Figures] = {}
    for who in WHO if elsewhere else WHO[:1]:
        beside = (len(elsewhere) if who == "party" else 0) + missed
        for how in ("fakes", "insider"):
            if method in f"{who}, {how}":
                series = (
                    view.target_items.take(kept) if how == "insider" else read_fakes(view, who, len(chosen))
                )
                odds = item_odds(view, series, who, len(chosen), share, beside)
                found[f"{who}, {how}"] = judge_odds(odds, truth[chosen], held[chosen], popularity, alone)
    if method in "public tables":
        known = torch.from_numpy(rng.random(truth.shape) < KNOWN) & truth
        odds = read_tables(public, known, planted.honest).masked_fill(known, -torch.inf)
        found["public tables"] = judge_odds(odds, truth & ~known, held, popularity, None, known)
    if method in "one rating" and view.exact:
        found["one rating"] = tell_one_rating(view, truth[chosen], view.target_items.take(kept), rng)
    if method in "party, both trainings" and config.trains_final and view.kind != "steps":
        whole_config = config.for_final()
        again = record_federation(planted.parties, whole_config, start=federation.coordinator.public)
        later = watch_releases(
            again, attacker=attacker, target=target, chosen=rows, rounds=whole_config.training.epochs
        )
        beside = len(elsewhere) + missed
        before, after = (
            item_odds(seen, read_fakes(seen, "party", len(chosen)), "party", len(chosen), share, beside)
            for seen in (view, later)
        )
        new, never = (held & ~truth)[chosen], ~(held | truth)[chosen]
        left = unexplained(after, before, ~truth[chosen])
        found["party, both trainings"] = {
            "guess": 0.5,
            "taste": _round(auc_within(before, new, never)),
            "within": _round(auc_within(after, new, never)),
            "held": _round(auc_within(left, new, never)),
        }
    if not found:
        raise ConfigError(
            f"no attack has '{method}' in its name; choose from: party, fakes; party, insider; party, both trainings; public "
            "tables; one rating"
        )
    return found


def read_tables(public: Mapping[str, Tensor], known: Tensor, users: int) -> Tensor:
    """Return a score (N, M) of having each item, from the final public tables and the users known to have it (N, M)."""
    rows = torch.cat([public[name][:users] for name in ("users", "raters") if name in public], 1).double()
    rows = (rows - rows.mean(0)) / rows.std(0).clamp(min=1e-9)
    gram = rows.T @ rows + RIDGE * len(rows) * torch.eye(rows.shape[1]).double()
    fitted: Tensor = torch.linalg.solve(gram, rows.T @ known.double())
    return rows @ fitted


def tell_one_rating(view: ReleaseView, truth: Tensor, items: ItemSeries, rng: np.random.Generator) -> Figures:
    """Tell whether one more rating is in the training part, for someone who knows everything else.

    Each victim's row is compared with what the rating would add to it. Half of the ratings are there, the others are not.
    """
    there = torch.from_numpy(rng.random(len(truth)) < 0.5)
    width = view.users.shape[2]
    scores, shifts = [], []
    for user, present in enumerate(there.tolist()):
        places = torch.nonzero(truth[user] == present).squeeze(1)
        item = int(places[int(rng.integers(len(places)))])
        parts = item_parts(view, items, user, item)
        added = parts[0, 0] if view.kind == "lists" else parts[0, 0] + float(rng.normal()) * parts[0, 1]
        added = added[:, :width].double()
        left = (view.rows["party"][user] - view.exact["party"][user])[:, :width].double() + present * added
        power = (added.square() / view.variance("party")[:width]).sum()
        scores.append((left * added / view.variance("party")[:width]).sum() - power / 2)
        shifts.append(power.sqrt())
    return {
        "all": round(auc(torch.stack(scores), there)[0], 6),
        "guess": 0.5,
        "shift": round(float(torch.stack(shifts).median()), 3),
    }


@dataclass(frozen=True)
class Surroundings:
    """Noise of a row in released units: independent in each column, and normal along a few directions."""

    noise: Tensor
    """Variances (T C,)."""
    directions: Tensor
    """Orthonormal after division by the root of `noise` (r, T C)."""
    power: Tensor
    """Variances along them in units of the noise (r,)."""

    @classmethod
    def of(cls, noise: Tensor, others: Tensor, times: float) -> Surroundings:
        """Model the noise, and `times` the covariance of other parties' rows (N, T C)."""
        rows = (others - others.mean(0)) * noise.rsqrt()
        rows = rows * (times / len(rows)) ** 0.5
        values, vectors = torch.linalg.eigh(rows @ rows.T)
        values, vectors = values.flip(0)[:DIRECTIONS], vectors.flip(1)[:, :DIRECTIONS]
        kept = values > 1e-3
        directions = (vectors[:, kept].T @ rows) / values[kept].sqrt().unsqueeze(1)
        return cls(noise, directions, values[kept])

    def whiten(self, rows: Tensor) -> Tensor:
        """Return rows (n, T C) so that their noise is independent with variance 1."""
        rows = rows * self.noise.rsqrt()
        along = rows @ self.directions.T
        return rows + (along * ((1 + self.power).rsqrt() - 1)) @ self.directions


def item_odds(
    view: ReleaseView, items: ItemSeries, who: Who, victims: int, share: Tensor, beside: float
) -> Tensor:
    """Return the log odds (V, M) that each of the first `victims` rows has each item.

    `share` (M,) is the share of users who have an item. `beside` says how many parties like the attacker's own are in the rows beside
    these items.
    """
    rows = view.rows[who][:victims]
    power = rows.square().mean((0, 1))
    noise = view.variance(who) + MODEL_NOISE * power
    noise[view.users.shape[2] :] += READ_NOISE * power[view.users.shape[2] :]
    noise = noise.expand(rows.shape[1:]).flatten().clamp(min=1e-9)
    own = view.own.flatten(1)
    sample = torch.randperm(len(own), generator=torch.Generator().manual_seed(0))[:OWN_ROWS]
    around = Surroundings.of(noise, own[sample], beside)
    left = rows.flatten(1) - own.mean(0) * beside
    weight = LIKED
    if view.kind == "steps":
        signal = (rows.square().mean() - view.variance(who)).clamp(min=0) / (1 + beside)
        size = (share.float().unsqueeze(1) * items.vectors.square().mean(2)).sum(0).mean()
        weight = (0.0, max(float(signal / size.clamp(min=1e-30)), 1e-6))
    mean, prior = _prior(share, None if view.kind == "ratings" else weight)
    found = []
    for user in range(victims):
        parts = around.whiten(item_parts(view, items, user).flatten(2).flatten(0, 1)).double()
        row = around.whiten(left[user].unsqueeze(0)).double()[0]
        found.append(
            log_likelihood_ratios(parts, row, mean, prior, None if view.kind == "ratings" else weight)
        )
    return torch.stack(found) + share.logit()


def _prior(share: Tensor, weight: tuple[float, float] | None) -> tuple[Tensor, Tensor]:
    """Return mean (M, k) and covariance (M, k, k) of an item's unknowns: having and rating it, or a `weight` of mean and variance."""
    if weight is not None:
        mean = share * weight[0]
        square = share * (weight[0] ** 2 + weight[1])
        return mean.unsqueeze(1), (square - mean.square()).view(-1, 1, 1)
    zero = torch.zeros_like(share)
    variances = torch.stack([share * (1 - share), share * TASTES], 1)
    return torch.stack([share, zero], 1), torch.diag_embed(variances)


def item_parts(view: ReleaseView, items: ItemSeries, user: int, item: int | None = None) -> Tensor:
    """Return what each unknown of each item, or of one, adds to a user's row (M, k, T, C), in released units."""
    table = view.users[user]
    if item is not None:
        items = items.take(torch.tensor([item]))
    if view.kind == "steps":
        return items.vectors.unsqueeze(1) / view.scale[user]
    if view.kind == "lists":
        missing = 1 - torch.einsum("td,mtd->mt", table, items.vectors)
        return (missing.unsqueeze(2) * items.vectors).unsqueeze(1) / view.scale[user]
    dim = table.shape[1] - 1
    regressors = torch.cat([items.vectors, torch.ones_like(items.bias).unsqueeze(2)], 2) / items.noise.view(
        1, -1, 1
    )
    predicted = torch.einsum("td,mtd->mt", table[:, :dim], items.vectors) + table[:, dim] + items.bias
    has = -predicted.unsqueeze(2) * regressors
    if items.pull is not None:
        known = torch.cat([table[:, :dim], torch.ones_like(table[:, :1])], 1)
        has[..., :dim] -= torch.einsum("tk,tkd->td", known, items.pull)
    rates = regressors
    if items.read is not None and view.raters is not None:
        weights = view.raters[user]
        hidden = weights.shape[1] - 1
        vector, bias, atom = torch.split(items.read, [hidden, 1, hidden], 2)
        seen = torch.cat([vector, torch.ones_like(bias)], 2)
        guess = torch.einsum("td,mtd->mt", weights, seen) + bias[..., 0]
        has = torch.cat([has, -guess.unsqueeze(2) * seen, torch.zeros_like(atom), atom], 2)
        rates = torch.cat([rates, seen, atom / 2, torch.zeros_like(atom)], 2)
    return torch.stack([has, rates], 1) / view.scale[user]


def log_likelihood_ratios(
    parts: Tensor, row: Tensor, mean: Tensor, prior: Tensor, weight: tuple[float, float] | None = None
) -> Tensor:
    """Return the log likelihood ratio of having each item (M,), for white noise of variance 1.

    `parts` (M k, n) are what unknowns add to the row (n,), with a prior of `mean` (M, k) and covariance `prior` (M, k, k). Other items'
    unknowns are taken as normal. Unknowns are whether a user has the item and its rating, or a weight with this mean and variance.
    """
    count, k = mean.shape
    precision = torch.linalg.inv(prior)
    joint = parts @ parts.T
    places = torch.arange(count * k).view(count, k)
    joint[places.unsqueeze(2), places.unsqueeze(1)] += precision
    along = parts @ row + (precision @ mean.unsqueeze(2)).flatten()
    covariance = torch.cholesky_inverse(torch.linalg.cholesky(joint))
    middle = (covariance @ along).view(count, k, 1)
    own = torch.linalg.inv(covariance[places.unsqueeze(2), places.unsqueeze(1)])
    # What the row says about one item alone: exp(-z P z / 2 + h z).
    left = own - precision
    pull = (own @ middle - precision @ mean.unsqueeze(2)).squeeze(2)
    if weight is not None:
        return _normal_evidence(left[:, 0, 0], pull[:, 0], *weight)
    rated = _normal_evidence(left[:, 1, 1], pull[:, 1] - left[:, 0, 1], 0.0, TASTES)
    found: Tensor = rated + pull[:, 0] - left[:, 0, 0] / 2
    return found


def _normal_evidence(precision: Tensor, pull: Tensor, mean: float, variance: float) -> Tensor:
    """Return the log of the mean of exp(-p z^2 / 2 + h z) over z ~ N(mean, variance)."""
    wide = (1 + variance * precision).clamp(min=1e-9)
    exponent = (mean * pull - mean**2 * precision / 2 + variance * pull.square() / 2) / wide
    return exponent - wide.log() / 2


def read_fakes(view: ReleaseView, who: Who, first: int) -> ItemSeries:
    """Estimate what items add to rows from the rows of fake accounts, from `first` on, of which each has one item."""
    table, scale = view.users[first:], view.scale[first:]
    rows = view.rows[who][first:] * scale
    error = view.variance(who) * scale.square()
    one = torch.ones_like(rows[..., :1])
    rounds = torch.arange(rows.shape[1])
    memory = STEPS_MEMORY if view.kind == "steps" else NOISY_MEMORY if view.added.any() else MEMORY
    near = torch.exp(-(rounds.unsqueeze(0) - rounds.unsqueeze(1)).abs() / memory)
    if view.kind != "ratings":
        rows = _smooth(rows, one, error, near)
        size = one[..., 0]
        if view.kind == "lists":
            # With s = 1 - x_f . x_v, the row is s x_v; so s^2 - s + x_f . row = 0.
            size = (1 + (1 - 4 * (table * rows).sum(2)).clamp(min=0).sqrt()) / 2
        return ItemSeries(rows / size.unsqueeze(2), torch.zeros_like(size), torch.ones(rows.shape[1]))
    width = table.shape[2]
    own = view.own_items
    assert own.pull is not None
    known = torch.cat([table[..., :-1], one], 2)
    direct = rows[..., : width - 1] + torch.einsum("atk,tkd->atd", known, own.pull)
    vectors = _smooth(direct, rows[..., width - 1 : width], error[..., : width - 1], near)
    read = None
    if view.raters is not None:
        hidden = view.raters.shape[2] - 1
        predict, _, marks = torch.split(rows[..., width:], [hidden + 1, hidden, hidden], 2)
        noise = error[..., width:]
        vector = _smooth(predict[..., :-1], predict[..., -1:], noise[..., :hidden], near)
        atom = _smooth(marks, one, noise[..., -hidden:], near)
        read = torch.cat([vector, torch.zeros_like(one), atom], 2)
    return ItemSeries(vectors, torch.zeros(vectors.shape[:2]), own.noise, read, own.pull)


def _smooth(rows: Tensor, factor: Tensor, error: Tensor, near: Tensor) -> Tensor:
    """Return x (A, T, D) of rows x times a factor (A, T, 1), smoothed by weights of rounds (T, T), shrunk by the variance of errors."""
    weight = 1 / error
    top = torch.einsum("ts,asd->atd", near, rows * factor * weight)
    bottom = torch.einsum("ts,asd->atd", near, factor.square() * weight)
    raw = top / bottom.clamp(min=1e-30)
    power = (raw.square() - 1 / bottom.clamp(min=1e-30)).mean((0, 2), keepdim=True).clamp(min=1e-12)
    return top / (bottom + 1 / power)


def judge_odds(
    odds: Tensor,
    truth: Tensor,
    held: Tensor,
    popularity: Tensor,
    alone: Tensor | None = None,
    known: Tensor | None = None,
) -> Figures:
    """Return AUCs of log odds (V, M), which need no threshold; pairs that are `known` (V, M) are left out.

    - `all`: over all victims and items. `guess`: the same for popularity alone.
    - `within`: between users of the same item, where popularity says nothing.
    - `held`: as `within`, between users who rated the item in training and users whose rating of it was held out. A user's
      taste fits both, so 1/2 means that the odds show taste and nothing more.
    - `alone`: as `held`, for the victims `alone` (V,), who are at no third party. Their rows are hidden by no other.
    """
    asked = torch.ones_like(truth) if known is None else ~known
    guess = popularity.clamp(min=1).double().log().expand_as(odds)
    figures: Figures = {
        "all": auc(odds[asked], truth[asked])[0],
        "guess": auc(guess[asked], truth[asked])[0],
        "within": auc_within(odds, truth, asked & ~truth),
        "held": auc_within(odds, truth, held & ~truth & asked),
    }
    if alone is not None:
        figures["alone"] = auc_within(odds[alone], truth[alone], (held & ~truth)[alone])
    return {name: _round(value) for name, value in figures.items()}


def _round(value: float | None) -> float | None:
    return None if value is None else round(float(value), 6)


def unexplained(after: Tensor, before: Tensor, asked: Tensor) -> Tensor:
    """Return what ranks by `before` (V, M) do not explain of ranks by `after`, among the pairs of an item that are `asked`."""
    found = torch.zeros_like(after)
    for item, own in enumerate(asked.T):
        x, y = (ranks(odds[own, item]).double() for odds in (before, after))
        x, y = x - x.mean(), y - y.mean()
        found[own, item] = y - x * ((x * y).sum() / x.square().sum().clamp(min=1e-9))
    return found


def held_out_items(federation: RecordedFederation, party: int) -> Tensor:
    """Return which items (N, M) users rated at a party outside the training part."""
    held = torch.zeros_like(federation.parties[party].neighbours)
    for pairs in (federation.prepared[party].valid, federation.prepared[party].test):
        held[pairs.user.long(), pairs.item.long()] = True
    return held
