"""All of the paper's attacks on one run of one method, for several p_ad, each next to a guess."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.core.errors import ConfigError, DataError
from verfedgnn.core.key_stream import NoiseKey
from verfedgnn.core.random_streams import simulated_secret
from verfedgnn.runs.run import Run
from verfedgnn_research.attacks.adversaries import Planted
from verfedgnn_research.attacks.attack_scores import claimed, misplaced, popular, score
from verfedgnn_research.attacks.matching import match_gradients, match_items, match_users
from verfedgnn_research.attacks.run_view import RunInternals
from verfedgnn_research.attacks.subset_search import SCALES, best_subsets
from verfedgnn_research.baselines.fedsage import PREFIX

Attack = Callable[[int], Tensor]
"""Function that returns claims (V, M) made with a number of adversaries."""

ATTACKED = ("fedpergnn", "fedsage+", "verfedgnn")
"""Methods that the paper attacks."""


def mount_paper_attacks(
    run: Run,
    method: str,
    planted: Planted,
    *,
    attacker: int,
    victims: NDArray[np.int64],
    shares: Sequence[float],
    seed: int = 0,
) -> dict[str, dict[str, Any]]:
    """Return the scores of all attacks on a method, by attack and p_ad.

    - `neighbourhood`: on what the method exchanges (Table 3).
    - `exact`: on X itself, which is VerFedGNN without projection (Tables 4 and 5) and trains the generator of FedSage+.
    - `gradients`: on user gradients as sent (Table 7).
    - `open gradients`: on user gradients before protection.

    Each holds precision, recall and F1, and the same for `guess` and `misplaced`. `seed` is the seed of the
    gradients' noise.
    """
    inside = RunInternals.of(run)
    truth, popularity = neighbours(inside, planted)
    true = truth[torch.from_numpy(victims).to(truth.device)]
    found: dict[str, dict[str, Any]] = {}
    for name, attack in _attacks(inside, method, planted, attacker, torch.from_numpy(victims), seed).items():
        found[name] = {}
        for share in shares:
            claims = attack(planted.count(share))
            found[name][f"{share:g}"] = {
                **score(claims, true).to_dict(),
                "guess": score(popular(claims, popularity), true).to_dict(),
                "misplaced": misplaced(claims, true).to_dict(),
            }
    return found


def neighbours(inside: RunInternals, planted: Planted) -> tuple[Tensor, Tensor]:
    """Return which honest user has which item at the target (N, M), and the number of users of each item
    (M,).
    """
    graph = inside.graphs[planted.target]
    table = torch.zeros(graph.users, graph.items, dtype=torch.bool, device=graph.order.device)
    table[graph.edge_users.long(), graph.by_user[1].long()] = True
    honest = table[: planted.honest]
    return honest, honest.sum(0)


def choose_victims(truth: Tensor, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Choose `count` honest users with a neighbour at the target, from (N, M); all of them if there are
    fewer.
    """
    possible = np.flatnonzero(truth.any(1).cpu().numpy())
    if not len(possible):
        raise DataError(
            "no honest user has a neighbour at the target, so there is nobody to attack; choose another party"
        )
    return np.sort(rng.choice(possible, min(count, len(possible)), replace=False))


def _attacks(
    inside: RunInternals, method: str, planted: Planted, attacker: int, victims: Tensor, seed: int
) -> dict[str, Attack]:
    if method not in ATTACKED:
        raise ConfigError(f"the paper does not attack '{method}'; choose from: {', '.join(ATTACKED)}")
    device = inside.run.device
    gnn = inside.model.config.gnn.removeprefix(PREFIX)
    if gnn not in SCALES:
        raise ConfigError(f"the attack does not support the GNN '{gnn}'; choose from: {', '.join(SCALES)}")
    rows = victims.to(device)
    users = torch.from_numpy(planted.users).to(device)
    items = torch.from_numpy(planted.items).to(device)
    count = inside.graphs[planted.target].items

    def by_subsets(seen: Tensor, weight: float) -> Attack:
        """Return App. H's attack on neighbourhoods (N, D)."""
        return lambda a: claimed(
            best_subsets(seen[rows], seen[users[:a]] * weight, SCALES[gnn]).members, items, count
        )

    generator = torch.Generator(device).manual_seed(seed)

    def by_gradients(gradient: Tensor, mechanism: str) -> Attack:
        seen = inside.of_users(gradient)
        return lambda a: claimed(
            match_gradients(seen[rows], seen[users[:a]], mechanism, generator).members, items, count
        )

    attacks: dict[str, Attack] = {}
    if method == "fedpergnn":
        attacks["neighbourhood"] = _by_items(inside, planted, rows)
    else:
        own = inside.neighbourhood(planted.target).own
        weight = _coefficient(inside, planted.target, attacker) if gnn == "gat" else 1.0
        attacks["exact"] = by_subsets(own, weight)
        if method == "fedsage+":
            generated = inside.generated(attacker)
            attacks["neighbourhood"] = lambda a: claimed(
                match_users(generated[rows], generated[users[:a]]), items, count
            )
        else:
            attacks["neighbourhood"] = by_subsets(inside.reconstructed(own), weight)
    gradient = inside.user_gradient(planted.target)
    mechanism = inside.run.config.gradients.mechanism
    attacks["gradients"] = by_gradients(
        inside.released(gradient, NoiseKey(simulated_secret(seed, 0))), mechanism
    )
    if mechanism != "none":
        attacks["open gradients"] = by_gradients(gradient, "none")
    return attacks


def _by_items(inside: RunInternals, planted: Planted, victims: Tensor) -> Attack:
    """Return the attack on FedPerGNN, which sees every victim's items at the target embedding by
    embedding.
    """
    truth, _ = neighbours(inside, planted)
    victim, item = torch.nonzero(truth[victims]).unbind(1)
    embeddings = inside.run.models[planted.target].embeddings.to(truth.device)
    items = torch.from_numpy(planted.items).to(truth.device)

    def attack(count: int) -> Tensor:
        match = match_items(embeddings[item], embeddings[items[:count]])
        claims = torch.zeros(len(victims), truth.shape[1], dtype=torch.bool, device=truth.device)
        claims[victim[match >= 0], items[match[match >= 0]]] = True
        return claims

    return attack


def _coefficient(inside: RunInternals, target: int, attacker: int) -> float:
    """Return the factor from an adversary's row to the expected contribution of the same item to an honest
    user's row (GAT).

    The row is E_p(b) e_v with the coefficient of a user who has one neighbour, 1 / (1 + ratio) where
    attention is even. Divided by that it is e_v. The victim's coefficient is unknown; the mean over the
    attacker's own edges replaces it (App. H).
    """
    return (1 + float(inside.graphs[target].ratio.sum())) * inside.mean_coefficient(attacker)
