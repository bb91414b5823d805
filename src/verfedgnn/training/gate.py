r"""The gate: how much of the shared model a party takes, and how much of the one it could have trained alone.

.. math::
    \hat r = g \, \hat r_{\text{federated}} + (1 - g) \, \hat r_{\text{alone}}, \qquad
    g = \min_{[0, 1]} \sum_{\text{own validation}} (\hat r - r)^2
      = \left[ \frac{\langle r - a, f - a \rangle}{\langle f - a, f - a \rangle} \right]_0^1

It is chosen by the party on its own validation part and tells nobody anything. A party that gains nothing has g = 0 and serves
what it would have served alone, so joining does not cost it accuracy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from verfedgnn.config import Config
from verfedgnn.core.pairs import Pairs
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.prepared_data import Prepared
from verfedgnn.training.alone import train_alone
from verfedgnn.training.progress import Progress


@dataclass(frozen=True)
class Gated:
    """A party's mixture, its share g of the shared model, and what it would have alone."""

    model: PartyModel
    gate: float
    alone: PartyModel


def gated_models(
    prepared: Sequence[Prepared],
    models: Sequence[PartyModel],
    config: Config,
    ratings: int,
    *,
    watch: Callable[[Progress], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> list[Gated]:
    """Every party trains alone and chooses; `ratings` are all parties' training ratings."""
    gated = []
    for party, model in zip(prepared, models, strict=True):
        share = len(party.train) / max(1, ratings)
        device = party.train.user.device
        alone = train_alone(party.party, party.parts, config, share, device, watch=watch, stop=stop)
        gate = choose(model, alone, party.valid)
        gated.append(Gated(blend(model, alone, gate), gate, alone))
    return gated


def choose(federated: PartyModel, alone: PartyModel, valid: Pairs) -> float:
    """g from the validation part."""
    base = alone.predict(valid)
    change = federated.predict(valid) - base
    energy = float(change.square().sum())
    wanted = float((change * (valid.rating.double() - base)).sum())
    return min(1.0, max(0.0, wanted / energy)) if energy > 0 else 1.0


def blend(federated: PartyModel, alone: PartyModel, gate: float) -> PartyModel:
    """The mixture as one model: a product of longer vectors."""
    if gate == 1.0:
        return federated
    users = torch.cat([gate * federated.users, (1 - gate) * alone.users], 1)
    return PartyModel(users, torch.cat([federated.items, alone.items], 1), federated.embeddings)
