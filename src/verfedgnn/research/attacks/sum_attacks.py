"""All attacks on sums of neighbourhoods, by one party or by all parties but one (`verfedgnn attack --as party:NAME`).

The attackers try to learn which items the target's users have. Every score comes with the score of guessing popular items.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.core.errors import ConfigError
from verfedgnn.data import PartyData
from verfedgnn.research.attacks.adversaries import plant
from verfedgnn.research.attacks.attack_scores import misplaced, popular, score
from verfedgnn.research.attacks.fake_account_attacks import fake_account_attacks
from verfedgnn.research.attacks.insider_attacks import insider_attacks
from verfedgnn.research.attacks.noised_sum_attack import item_odds
from verfedgnn.research.attacks.noisy_sums import likeliest
from verfedgnn.research.attacks.paper_attacks import choose_victims
from verfedgnn.research.attacks.recording import Exchange, RecordedFederation, record_federation
from verfedgnn.research.attacks.separation import auc, auc_within
from verfedgnn.research.attacks.sum_view import SumView, Who
from verfedgnn.runs.prepared_data import split_ratings

Stage = Callable[[str, float], None]
"""Callback that receives the name of a stage, recording or attacks or odds, and its finished share."""

RECORDING, ATTACKS, ODDS = "recording", "attacks", "odds"
NOISE_EXPECTED: tuple[tuple[Who, Literal["insider", "fakes"]], ...] = (
    ("colluders", "insider"),
    ("colluders", "fakes"),
    ("party", "insider"),
    ("party", "fakes"),
)


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
    watch: Stage = lambda stage, share: None,
) -> dict[str, dict[str, Any]]:
    """Record `rounds` of a training with fake accounts in it and return the scores of all attacks on sums, by name.

    `copies` fake accounts are opened for each of a `share` of the target's items. A name is "who, how, ...": who is
    `colluders` (all parties but the target) or `party` (the attacker alone); how is `insider` (item atoms are known) or
    `fakes` (atoms are read off the fake accounts' rows). With `method`, only attacks whose names contain it are run.

    Every round covers all users, also where the configuration splits them into blocks: rows of one round are easier to
    compare than rows of several.
    """
    config = config.with_values({"training.user_blocks": 1})
    rng = np.random.default_rng([seed, 7])
    parts = [split_ratings(party, config.split, config.seed) for party in parties]
    planted = plant(parties, parts, target=target, share=share, rng=rng, copies=copies)
    federation = record_federation(planted.parties, config, parts=planted.parts)
    exchanges: list[Exchange] = []
    while federation.coordinator.round < rounds:
        exchanges.append(federation.exchange())
        watch(RECORDING, federation.coordinator.round / rounds)
    truth = federation.parties[target].neighbours[: planted.honest]
    chosen = torch.from_numpy(choose_victims(truth, victims, rng))
    view = SumView(
        federation,
        exchanges,
        target=target,
        attacker=attacker,
        fakes=torch.from_numpy(planted.users),
        items=torch.from_numpy(planted.items),
        victims=chosen,
        copies=copies,
    )
    popularity = truth.sum(0)
    attacks = insider_attacks(view) | fake_account_attacks(view)
    found = {}
    for done, (name, attack) in enumerate(attacks.items()):
        if method in name:
            found[name] = judge_claims(attack(), truth[chosen], popularity)
        watch(ATTACKS, (done + 1) / len(attacks))
    if config.exchange.mode == "noised":
        held = held_out_items(federation, target)[chosen]
        for done, (who, how) in enumerate(NOISE_EXPECTED):
            name = f"{who}, {how}, noise expected"
            if method not in name:
                continue

            def count(share: float, done: int = done) -> None:
                watch(ODDS, (done + share) / len(NOISE_EXPECTED))

            odds = item_odds(view, who, how, popularity / len(truth), count)
            found[name] = {
                **judge_claims(likeliest(odds), truth[chosen], popularity),
                "auc": judge_odds(odds, truth[chosen], held, popularity),
            }
    if not found:
        raise ConfigError(f"no attack has '{method}' in its name; choose from: {'; '.join(attacks)}")
    return found


def judge_claims(claims: Tensor, truth: Tensor, popularity: Tensor) -> dict[str, Any]:
    """Return the scores of claims (V, M), of a guess with as many items, and of the claims against other users' truth."""
    return {
        **score(claims, truth).to_dict(),
        "guess": score(popular(claims, popularity), truth).to_dict(),
        "misplaced": misplaced(claims, truth).to_dict(),
        "exact": round(float((claims == truth).all(1).double().mean()), 6),
    }


def judge_odds(odds: Tensor, truth: Tensor, held: Tensor, popularity: Tensor) -> dict[str, float | None]:
    """Return AUCs of log odds (V, M), which need no threshold.

    - `all`: over all victims and items. `guess`: the same for popularity alone. `score`: for odds without popularity.
    - `within`: between users of the same item, where popularity says nothing.
    - `held`: as `within`, between users who rated the item in training and users whose rating of it was held out. A user's
      taste fits both, so 1/2 means that the odds show taste and nothing more.
    """
    known = popularity.clamp(min=1).double().log().expand_as(odds)
    figures = {
        "all": auc(odds.flatten(), truth.flatten())[0],
        "guess": auc(known.flatten(), truth.flatten())[0],
        "score": auc((odds - known).flatten(), truth.flatten())[0],
        "within": auc_within(odds, truth, ~truth),
        "held": auc_within(odds, truth, held & ~truth),
    }
    return {name: None if value is None else round(float(value), 6) for name, value in figures.items()}


def held_out_items(federation: RecordedFederation, party: int) -> Tensor:
    """Return which items (N, M) users rated at a party outside the training part."""
    held = torch.zeros_like(federation.parties[party].neighbours)
    for pairs in (federation.prepared[party].valid, federation.prepared[party].test):
        held[pairs.user.long(), pairs.item.long()] = True
    return held
