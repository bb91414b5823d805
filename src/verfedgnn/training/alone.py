"""What a party, or a pool of parties, reaches without a federation: the same model, nothing exchanged, nothing protected."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.data import PartyData
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.prepared_data import prepare
from verfedgnn.training.loop import TrainingLoop
from verfedgnn.training.progress import Progress


def train_alone(
    data: PartyData,
    parts: NDArray[np.int8],
    config: Config,
    share: float,
    device: torch.device,
    *,
    label: str | None = None,
    stack: bool = True,
    watch: Callable[[Progress], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> PartyModel:
    """The model of one table by itself; `share` is how large a part of the federation's ratings it is.

    It knows only the users that rated something there; the others are served as an average user.
    """
    known = np.unique(data.ratings.user).astype(np.int64)
    own = PartyData(data.name, data.ratings.select_users(known))
    told = None if watch is None else lambda event: watch(replace(event, label=label or f"{data.name} alone"))
    solo = solo_config(config, share)
    (model,) = TrainingLoop(prepare([own], solo, device, [parts]), solo, stack=stack).run(told, stop).models
    return PartyModel(_for_all(model.users, known, data.ratings.n_users), model.items, model.embeddings)


def _for_all(users: Tensor, known: NDArray[np.int64], count: int) -> Tensor:
    whole = users.mean(0, keepdim=True).repeat(count, 1)
    whole[torch.from_numpy(known).to(users.device)] = users
    return whole


def solo_config(config: Config, share: float) -> Config:
    """The configuration of a training without others: nothing exchanged, nothing protected, batches in proportion."""
    batch = config.training.batch
    return config.with_values(
        {
            "masking": False,
            "exchange.mode": "off",
            "gradients.mechanism": "none",
            "gradients.clip": None,
            "model.residual": False,
            **({"model.generator": False} if config.model.form == "propagation" else {}),
            **({"model.own_messages": True} if config.model.form == "messages" else {}),
            "lists": False,
            "training.gate": False,
            "training.participation": 1.0,
            "training.batch": math.ceil(batch * share) if batch else 0,
        }
    )
