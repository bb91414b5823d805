"""The attacks that the paper does not try, mounted on a configuration: sums, gradients, the final model.

    attack_sums       a party, or all but one colluding, with fake accounts or an insider's knowledge   who has which item
    attack_gradients  the coordinator                                                                   who has ratings where
    membership        an outsider with the final model                                                  which ratings trained it

Every figure comes with what it is worth: the guess by popularity, or an AUC whose 1/2 is a coin.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.config.sections import FRACTION_BITS
from verfedgnn.core.errors import ConfigError
from verfedgnn.data import PartyData
from verfedgnn.privacy.projection import Projection
from verfedgnn.research.attacks.adversaries import plant
from verfedgnn.research.attacks.attack_scores import claimed, misplaced, popular, score
from verfedgnn.research.attacks.collusion import Exposure, honest_sum
from verfedgnn.research.attacks.curious_coordinator import read_trip
from verfedgnn.research.attacks.many_releases import Average, cosines
from verfedgnn.research.attacks.noisy_sums import (
    in_modes,
    likeliest,
    log_odds,
    smoothed,
    spread_of_others,
    time_modes,
)
from verfedgnn.research.attacks.paper_attacks import choose_victims
from verfedgnn.research.attacks.projection_inverse import dense, ridge
from verfedgnn.research.attacks.recording import TOGETHER, Exchange, Tapped, tapped
from verfedgnn.research.attacks.round_stacking import stacked, unmix, unmix_sums, users_of_items
from verfedgnn.research.attacks.separation import auc, auc_within, rank_correlation, separate
from verfedgnn.research.attacks.sparse_recovery import Recovered, equal_size, largest, nnls, omp, polish
from verfedgnn.research.attacks.subset_search import SCALES, best_subsets
from verfedgnn.runs.prepared_data import split_ratings

COLUMNS = 2048
"""Most columns that are stacked; more would make the solution slow and hardly better."""
FEW = 8
"""Columns up to which the subset search is fast: its boxes rule out nothing in many dimensions."""
SINGLE = 20
"""Rounds that are read one by one."""

Watch = Callable[[int, int], None]
"""Told the rounds that were listened to, of how many."""


def judged(claims: Tensor, truth: Tensor, popularity: Tensor) -> dict[str, Any]:
    """Scores of claims (V, M), of the guess that claims as many, and of the same claims held against others' truth."""
    return {
        **score(claims, truth).to_dict(),
        "guess": score(popular(claims, popularity), truth).to_dict(),
        "misplaced": misplaced(claims, truth).to_dict(),
        "exact": round(float((claims == truth).all(1).double().mean()), 6),
    }


def ranked(odds: Tensor, truth: Tensor, held: Tensor, popularity: Tensor) -> dict[str, float | None]:
    """What odds (V, M) are worth without any claim, as AUCs: `all` of all victims and items, `guess` that of popularity alone,
    `score` that of odds without it.

    `within` compares users of the same item, where popularity says nothing. `held` does so for those who rated it in training
    and those whose rating of it was held out: tastes fit both, so that 1/2 means that tastes are all that shows.
    """
    known = popularity.clamp(min=1).double().log().expand_as(odds)
    figures = {
        "all": auc(odds.flatten(), truth.flatten())[0],
        "guess": auc(known.flatten(), truth.flatten())[0],
        "score": auc((odds - known).flatten(), truth.flatten())[0],
        "within": auc_within(odds, truth, ~truth),
        "held": auc_within(odds, truth, held & ~truth),
    }
    return {name: None if value is None else short(value) for name, value in figures.items()}


def attack_sums(
    parties: Sequence[PartyData],
    config: Config,
    *,
    rounds: int,
    share: float = 1.0,
    copies: int = 1,
    attacker: int = 0,
    target: int = 1,
    victims: int = 500,
    seed: int = 0,
    method: str = "",
    watch: Watch = lambda round, rounds: None,
) -> dict[str, dict[str, Any]]:
    """All attacks on sums of neighbourhoods over so many rounds, with `copies` fake accounts for each of `share` of the items.

    By name "who, how": who is `colluders` (all parties but the target) or `party` (the attacker alone). Insiders know the atoms
    of one exchange, or for noised sums of all; `fakes` read them off their own rows, of one exchange or of all. With a `method`,
    only those with it in their names. Users all have their turn in every round, also where a training takes them in parts: rows
    of one round are easier to compare than rows of several.
    """
    config = config.with_values({"training.user_blocks": 1})
    rng = np.random.default_rng([seed, 7])
    parts = [split_ratings(party.ratings, config.split, config.seed) for party in parties]
    planted = plant(parties, parts, target=target, share=share, rng=rng, copies=copies)
    federation = tapped(planted.parties, config, parts=planted.parts)
    exchanges: list[Exchange] = []
    while federation.coordinator.round < rounds:
        exchanges.append(federation.exchange())
        watch(federation.coordinator.round, rounds)
    truth = federation.parties[target].neighbours[: planted.honest]
    chosen = torch.from_numpy(choose_victims(truth, victims, rng))
    fakes, items = torch.from_numpy(planted.users), torch.from_numpy(planted.items)
    view = _View(federation, exchanges, target, attacker, fakes, items, chosen, copies)
    popularity = truth.sum(0)
    attacks = _attacks(view)
    found = {
        name: judged(attack(), truth[chosen], popularity)
        for name, attack in attacks.items()
        if method in name
    }
    if config.exchange.mode == "noised":
        held = _held_out(federation, target)[chosen]
        for who, how in itertools.product(("colluders", "party"), ("insider", "fakes")):
            if method not in f"{who}, {how}, noise expected":
                continue
            odds = view.odds(who, how, popularity / len(truth))
            found[f"{who}, {how}, noise expected"] = {
                **judged(likeliest(odds), truth[chosen], popularity),
                "auc": ranked(odds, truth[chosen], held, popularity),
            }
    if not found:
        raise ConfigError(f"no attack here is called '{method}'; there are: {'; '.join(attacks)}")
    return found


def _held_out(federation: Tapped, party: int) -> Tensor:
    """Which items (N, M) users have ratings of that are not in training."""
    held = torch.zeros_like(federation.parties[party].neighbours)
    for pairs in (federation.prepared[party].valid, federation.prepared[party].test):
        held[pairs.user.long(), pairs.item.long()] = True
    return held


class _View:
    """What attackers have of several exchanges, as rows of all users."""

    def __init__(
        self,
        federation: Tapped,
        exchanges: Sequence[Exchange],
        target: int,
        attacker: int,
        fakes: Tensor,
        items: Tensor,
        victims: Tensor,
        copies: int,
    ) -> None:
        self.federation, self.exchanges, self.target, self.attacker = federation, exchanges, target, attacker
        self.fakes, self.items, self.victims = fakes, items, victims
        self.once = len(items) // copies
        """The first so many fakes have all items once."""
        self.honest = len(federation.parties[target].neighbours) - len(fakes)
        exchange = federation.config.exchange
        self.noise = 2.0 ** -FRACTION_BITS[exchange.bits] / math.sqrt(12)
        """Standard deviation of the rounding to fixed point."""
        self.projection = federation.parties[0].projection
        self.phi = dense(self.projection) if isinstance(self.projection, Projection) else None

    def rows(self, exchange: Exchange, who: str, *, least: bool = False) -> Tensor:
        """Rows of all layers (N, K C): exact where the exchange is, else reconstructed by the adjoint or with least norm."""
        own = [
            s
            for p, s in enumerate(exchange.sent)
            if (p != self.target if who == "colluders" else p == self.attacker)
        ]
        left = honest_sum(exchange.start, own, self.federation.config.exchange.bits)
        flat = left.permute(1, 0, 2).flatten(1)
        if self.projection is None:
            raise ConfigError("nothing is exchanged in this configuration, so there is no sum to attack")
        return ridge(flat, self.phi) if least and self.phi is not None else self.projection.reconstruct(flat)

    def first_layer(self, rows: Tensor) -> Tensor:
        """The first layer's part (N, C) of rows."""
        return rows[:, : self.federation.coordinator.model.operator.columns]

    def series(self, who: str) -> Tensor:
        """Rows of exchanges spread over the training, stacked (N, T K C); the first, before training, shows nothing."""
        width, last = self.rows(self.exchanges[0], who).shape[1], len(self.exchanges) - 1
        places = np.unique(
            np.linspace(min(1, last), last, max(1, min(COLUMNS // width, last))).round().astype(int)
        )
        rows = stacked([self.rows(self.exchanges[i], who) for i in places])
        return rows[:, rows.any(0)]

    def insider(self, who: str) -> tuple[Tensor, int, int]:
        """Atoms (m, D) of all items in what is left of the last sum, and where the target's begin and end."""
        last = self.exchanges[-1]
        inside = (
            [self.target] if who == "colluders" else [p for p in range(len(last.knows)) if p != self.attacker]
        )
        atoms = [self.federation.parties[p].atoms(last.knows[p]) for p in inside]
        start = sum(len(atoms[i]) for i, p in enumerate(inside) if p < self.target)
        return torch.cat(atoms), start, start + self.federation.parties[self.target].data.items

    def odds(self, who: str, how: str, share: Tensor) -> Tensor:
        """Log odds (V, M) from noised sums of all exchanges, by `insider` or `fakes`; `share` (M,) of users have an item."""
        config, parties = self.federation.config.exchange, self.federation.parties
        me, target, share = parties[self.attacker], parties[self.target], share.double()
        exposure = Exposure(len(parties), len(parties) - 1 if who == "colluders" else 1)
        assert config.mode == "noised"
        variance = config.noise**2 * exposure.noise_left + exposure.summed * self.noise**2
        own = torch.stack([me.atoms(each.knows[self.attacker]) for each in self.exchanges], 1)
        modes = time_modes(own)
        own = in_modes(own, modes)
        rows = in_modes(
            torch.stack([self.first_layer(self.rows(each, who)) for each in self.exchanges], 1), modes
        )
        spread = variance * torch.eye(rows.shape[1], dtype=rows.dtype)
        items = self.items[: self.once]
        if how == "insider":
            items = torch.arange(len(share))
            atoms = in_modes(
                torch.stack([target.atoms(each.knows[self.target]) for each in self.exchanges], 1), modes
            )
        else:
            place = torch.arange(len(self.fakes)) % self.once
            atoms, wrong = smoothed(rows[self.fakes], place, own, rows.shape[1] // modes.shape[1], variance)
            spread = spread + torch.diag(wrong)
        rows = rows[: self.honest]
        if who == "party":
            mine = in_modes(
                torch.stack([me.neighbourhood(each.knows[self.attacker]) for each in self.exchanges], 1),
                modes,
            )
            spread = spread + spread_of_others(mine[: self.honest], rows, exposure.summed - 1, variance)
            rows = rows - rows.mean(0) + share[items] @ atoms * share.sum().clamp(min=1).rsqrt()
        odds = share.clamp(1e-4, 0.9).logit().repeat(len(self.victims), 1)
        odds[:, items] = log_odds(rows[self.victims], atoms, spread, share[items])
        return odds

    def unprojected(self) -> Tensor:
        """Claims (V, M) of colluders who know the target's atoms in every exchange, from its projected first layer."""
        assert self.phi is not None
        colluders = [p for p in range(len(self.federation.parties)) if p != self.target]
        bits, target = self.federation.config.exchange.bits, self.federation.parties[self.target]
        y = [honest_sum(each.start, [each.sent[p] for p in colluders], bits)[0] for each in self.exchanges]
        return users_of_items(
            y, [target.atoms(each.knows[self.target]) for each in self.exchanges], self.phi
        )[self.victims]

    def of_fakes(self, weights: Tensor) -> Tensor:
        """Claims (V, M) from weights of the fakes' items (V, A)."""
        claims = torch.zeros(len(weights), self.federation.parties[self.target].data.items, dtype=torch.bool)
        claims[:, self.items[: self.once]] = largest(weights, equal_size(weights))
        return claims


def _attacks(view: _View) -> dict[str, Callable[[], Tensor]]:
    last, rows = view.exchanges[-1], view.victims
    attacks: dict[str, Callable[[], Tensor]] = {}

    def insider(
        who: str, method: Callable[[Tensor, Tensor], Recovered], least: bool = False
    ) -> Callable[[], Tensor]:
        def attack() -> Tensor:
            atoms, start, stop = view.insider(who)
            weights = method(view.first_layer(view.rows(last, who, least=least))[rows], atoms).weights
            return largest(weights, equal_size(weights))[:, start:stop]

        return attack

    def pursued(x: Tensor, atoms: Tensor) -> Recovered:
        return omp(x, atoms, noise=1.1 * view.noise)

    def polished(x: Tensor, atoms: Tensor) -> Recovered:
        weights = pursued(x, atoms).weights
        return polish(x, atoms, largest(weights, equal_size(weights)), noise=view.noise)

    def subsets(who: str, least: bool) -> Callable[[], Tensor]:
        def attack() -> Tensor:
            seen = view.first_layer(view.rows(last, who, least=least))
            config = view.federation.config.model
            scale = SCALES["gcn" if config.form == "messages" else config.gnn]
            found = best_subsets(seen[rows], seen[view.fakes], scale)
            return claimed(found.members, view.items, view.federation.parties[view.target].data.items)

        return attack

    for who in ("colluders", "party"):
        attacks[f"{who}, insider, nnls"] = insider(who, nnls)
        attacks[f"{who}, insider, omp"] = insider(who, pursued)
    attacks["colluders, insider, polished"] = insider("colluders", polished)
    if view.phi is not None:
        attacks["colluders, insider, omp, ridge"] = insider("colluders", pursued, True)
        if view.federation.config.model.dim <= FEW:
            attacks["colluders, fakes, subset, adjoint"] = subsets("colluders", False)
            attacks["colluders, fakes, subset, ridge"] = subsets("colluders", True)

    def over_rounds(who: str, solve: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[[], Tensor]:
        def attack() -> Tensor:
            seen = view.series(who)
            return view.of_fakes(solve(seen[rows], seen[view.fakes[: view.once]], seen[: view.honest]))

        return attack

    if view.phi is not None:
        attacks["colluders, insider, all exchanges"] = view.unprojected
    attacks["colluders, fakes, all exchanges"] = over_rounds(
        "colluders", lambda x, a, _: unmix(x, a, 2 * view.noise)
    )
    attacks["party, fakes, all exchanges"] = over_rounds("party", unmix_sums)
    return attacks


def attack_gradients(
    parties: Sequence[PartyData],
    config: Config,
    *,
    rounds: int,
    at: Sequence[int] = (1, 10, 100),
    seed: int = 0,
    watch: Watch = lambda round, rounds: None,
) -> dict[str, Any]:
    """What the coordinator reads in user gradients: in single rounds, and from the mean over the first `at` rounds.

    AUCs are means over parties: of a user's ratings in the batch (`batch`), of any training rating there (`any`). `degree` is the
    rank correlation with how many there are; `cosine` is that of the mean release with the mean gradient of the same sender, over
    users with ratings. `guess` is the AUC of how many ratings a user has at all parties together, which is what masked sums
    tend to show: who rates much has ratings everywhere.
    """
    generator = torch.Generator().manual_seed(seed)
    federation = tapped(parties, config.with_values({"training.user_blocks": 1}))
    averages: dict[str, Average] = {}
    true: list[Tensor] = []
    single: list[dict[str, float]] = []
    found: dict[str, Any] = {}
    counts = [
        torch.bincount(p.train.user.long(), minlength=p.party.ratings.n_users) for p in federation.prepared
    ]
    for number in range(1, rounds + 1):
        trip = federation.round()
        for name, rows in federation.sent_gradients(trip).items():
            averages.setdefault(name, Average()).add(rows)
        gradients = [federation.of_users(party.gradient).double() for party in federation.parties]
        true = [a + b for a, b in zip(true, gradients, strict=True)] if true else gradients
        if number <= SINGLE:
            for reading in read_trip(federation, trip, generator).values():
                single.append(
                    {"auc": reading.separation.auc, "proven": reading.proven, "false": reading.false}
                )
        if number in at or number == rounds:
            found[str(number)] = _over_rounds(federation, averages, true, counts, generator)
        watch(number, rounds)
    batch = {key: short(np.mean([each[key] for each in single])) for key in single[0]} if single else None
    return {"batch": batch, "rounds": found}


def _over_rounds(
    federation: Tapped,
    averages: dict[str, Average],
    true: list[Tensor],
    counts: list[Tensor],
    generator: torch.Generator,
) -> dict[str, float]:
    figures: dict[str, list[float]] = {
        "any": [],
        "guess": [],
        "degree": [],
        "proven": [],
        "false": [],
        "cosine": [],
    }
    overall = torch.stack(counts).sum(0)
    if TOGETHER in averages:
        true = [torch.stack(true).sum(0)] * len(true)
    for party, gradient, count in zip(federation.parties, true, counts, strict=True):
        average = averages.get(party.data.name, averages.get(TOGETHER))
        assert average is not None
        rated = count > 0
        if bool(rated.all()):
            continue
        figures["any"].append(separate(average.activity, rated, generator).auc)
        figures["guess"].append(separate(overall, rated, generator).auc)
        figures["degree"].append(rank_correlation(average.activity, count))
        figures["proven"].append(float(average.proven[rated].double().mean()))
        figures["false"].append(float(average.proven[~rated].double().mean()))
        figures["cosine"].append(float(cosines(average.mean, gradient)[rated].mean()))
    return {name: short(np.mean(values)) for name, values in figures.items() if values}


def short(value: float | np.floating[Any] | NDArray[Any]) -> float:
    """For a record."""
    return round(float(value), 6)
