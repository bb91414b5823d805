r"""A party tries to tell which of its own users are at other parties, too (part of `verfedgnn audit`).

.. math::
    s_u = \textstyle\sum_t | x_u^t |_1 \quad \text{or} \quad s_u = \left| \sum_t x_u^t \right|_2, \qquad
    x^t = \textstyle\sum_i x_i^t - x_p^t

x is what all parties send about users, as a sum that party p receives: gradients of user parameters, or the numbers of ratings
that the first round of a solved model shares. Who: any party. Needs: the sums of many rounds, and its own
part of them. A user without ratings at the others adds zeros to their part, and ternary quantization keeps zeros. Noise
that is added to every row hides them. The second score averages such noise out over rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.data import PartyData
from verfedgnn.protocol.solved_round import is_first, read_totals
from verfedgnn.runs.prepared_data import split_ratings
from verfedgnn_research.attacks.coordinator_attack import ReleaseAverage
from verfedgnn_research.attacks.federation_sample import sample_users
from verfedgnn_research.attacks.recording import ObservableParty, record_federation
from verfedgnn_research.attacks.separation import auc

USERS = 2_000
"""Largest number of users in the recorded federation; more are sampled."""
ROUNDS = 60
"""Largest number of rounds to record."""
FEWEST = 10
"""Users with and without ratings elsewhere that a party needs for its AUC."""


def attack_overlap(
    parties: Sequence[PartyData],
    config: Config,
    *,
    rounds: int = ROUNDS,
    parts: Sequence[NDArray[np.int8]] | None = None,
    seed: int = 0,
    watch: Callable[[int, int], None] = lambda round, rounds: None,
) -> dict[str, Any]:
    """Record a short training and return how well each party tells which of its users are at other parties.

    At most `USERS` users and `ROUNDS` rounds are recorded. Every round covers all users. The result has:

    - `attacks`: by name, the mean AUC over parties, its standard error, and the AUC of each party.
    - `guess`: the mean AUC of a user's number of ratings at the party itself, which needs no federation.
    - `users`, `rounds`: the numbers of recorded users and rounds.

    Parties with fewer than `FEWEST` users of either kind are left out. If that leaves none, `attacks` is empty and `guess`
    is None: the question is void, for instance where one catalogue was cut into parties.
    """
    if parts is None:
        parts = [split_ratings(party, config.split, config.seed) for party in parties]
    parties, parts = sample_users(parties, parts, USERS, np.random.default_rng([seed, 11]))
    counts = torch.stack([_ratings_per_user(party) for party in parties])
    judged = {p: truth for p, truth in enumerate(_elsewhere(counts)) if truth is not None}
    found: dict[str, Any] = {"users": counts.shape[1], "rounds": 0, "guess": None, "attacks": {}}
    if not judged:
        return found
    federation = record_federation(parties, config, parts=parts)
    listeners = [Listener(party) for party in federation.parties]
    rounds = min(rounds, ROUNDS, federation.parties[0].replica.rounds)
    found["rounds"] = rounds
    for number in range(1, rounds + 1):
        trip = federation.round()
        for listener in listeners:
            listener.hear(federation.sum_of_others(trip, listener.party.index))
        watch(number, rounds)
    names = [party.name for party in parties]
    scores = {p: listeners[p].scores() for p in judged}
    for attack in dict.fromkeys(attack for each in scores.values() for attack in each):
        found["attacks"][attack] = _judge(
            {p: each[attack] for p, each in scores.items() if attack in each}, counts, judged, names
        )
    found["guess"] = _judge({p: counts[p] for p in judged}, counts, judged, names)["auc"]
    return found


class Listener:
    """A party that keeps what the others' sums show about each user."""

    def __init__(self, party: ObservableParty) -> None:
        self.party = party
        self._gradients = ReleaseAverage()
        self._biases = ReleaseAverage()
        self._counts: Tensor | None = None

    def hear(self, others: Tensor) -> None:
        """Take in the sum of what the other parties released in a round, flat."""
        model = self.party.model
        if model.solved is not None and is_first(model, self.party.now.public):
            self._counts = read_totals(model, others)[:, 0].double()
            return
        views = model.views(others.float())
        rows = {name: views[name].reshape(model.users, -1) for name in model.per_user if name != "totals"}
        self._gradients.add(torch.cat(list(rows.values()), 1))
        if model.solved is not None and not model.solved.lists:
            self._biases.add(rows["users"][:, -1:])
        elif "user_bias" in rows:
            self._biases.add(rows["user_bias"])

    def mean_gradient(self, user: int) -> NDArray[np.float64]:
        """Return the mean over rounds of the others' gradient of one user's public parameters."""
        return self._gradients.mean[user].double().numpy()

    def scores(self) -> dict[str, Tensor]:
        """Return the score of every user (N,) by attack; higher means more likely at another party."""
        found = {}
        if self._counts is not None:
            found["numbers of ratings, first round"] = self._counts
        if self._gradients.releases:
            found["gradients, round by round"] = self._gradients.activity
            found["gradients, added up"] = self._gradients.mean.norm(dim=1)
        if self._biases.releases:
            found["gradients of user biases, added up"] = self._biases.mean.norm(dim=1)
        return found


def _ratings_per_user(party: PartyData) -> Tensor:
    return torch.bincount(torch.from_numpy(party.ratings.user).long(), minlength=party.ratings.n_users)


def _elsewhere(counts: Tensor) -> list[Tensor | None]:
    """Return for each party which of its users (n,) have ratings at others; None where too few do or do not.

    `counts` (P, N) holds the number of ratings of each user at each party.
    """
    found: list[Tensor | None] = []
    for own, others in zip(counts, counts.sum(0) - counts, strict=True):
        truth = others[own > 0] > 0
        found.append(truth if min(int(truth.sum()), int((~truth).sum())) >= FEWEST else None)
    return found


def _judge(
    scores: dict[int, Tensor], counts: Tensor, judged: dict[int, Tensor], names: Sequence[str]
) -> dict[str, Any]:
    """Return the mean AUC of scores (N,) over parties, its standard error, and the AUC of each party."""
    areas = {p: auc(score[counts[p] > 0], judged[p]) for p, score in scores.items()}
    error = math.sqrt(sum(spread**2 for _, spread in areas.values())) / len(areas)
    return {
        "auc": round(float(np.mean([area for area, _ in areas.values()])), 6),
        "error": round(error, 6),
        "parties": {names[p]: round(area, 6) for p, (area, _) in areas.items()},
    }
