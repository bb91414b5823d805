"""Training without a federation: the same model on one table, with no exchange and no protection."""

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
    watch: Callable[[Progress], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> PartyModel:
    """Train a model on one table alone and return it; users without a rating in the table get the average user vector.

    `share` is the table's share of all training ratings of the federation; batches shrink in proportion. `label` names
    the training in progress reports.
    """
    known = np.unique(data.ratings.user).astype(np.int64)
    own = PartyData(data.name, data.ratings.select_users(known))
    name = f"{data.name} alone, lists" if config.ranks else f"{data.name} alone"
    renamed = None if watch is None else lambda event: watch(replace(event, label=label or name))
    solo = solo_config(config, share)
    (model,) = TrainingLoop(prepare([own], solo, device, [parts]), solo).run(renamed, stop).models
    return PartyModel(_for_all(model.users, known, data.ratings.n_users), model.items, model.embeddings)


def _for_all(users: Tensor, known: NDArray[np.int64], count: int) -> Tensor:
    """Expand the vectors of the `known` users to all `count` users; the others get the average vector."""
    whole = users.mean(0, keepdim=True).repeat(count, 1)
    whole[torch.from_numpy(known).to(users.device)] = users
    return whole


def solo_config(config: Config, share: float) -> Config:
    """Return `config` without exchange, protection, gate and lists, and with batches scaled to `share`."""
    batch = config.training.batch
    return config.with_values(
        {
            "masking": False,
            "exchange": "off",
            "gradients.mechanism": "none",
            "gradients.clip": None,
            "lists": False,
            "training.gate": False,
            "training.participation": 1.0,
            "training.batch": math.ceil(batch * share) if batch else 0,
        }
    )
