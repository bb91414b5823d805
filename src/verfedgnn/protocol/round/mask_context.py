"""What the coordinator must have sent to all active parties alike. Masks depend on it, so between other parties they do not cancel."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray

from verfedgnn.core.worker_group import WorkerGroup
from verfedgnn.gnn.model import Model
from verfedgnn.protocol.round.replica import Replica
from verfedgnn.protocol.round.user_groups import hash_arrays, hash_users
from verfedgnn.protocol.wire.messages import RoundStart

ReceivedTotal = tuple[int, NDArray[Any]]
"""A round, and the sum of its gradients."""


def mask_context(
    start: RoundStart, replica: Replica, last_update: ReceivedTotal | None, last_sum: str
) -> bytes:
    """Hash the common inputs of a trip.

    `replica` is at the start of the round. `last_update` is the update that a backward exchange reads, with its round, and
    `last_sum` the hash of the summed neighbourhoods of the round's users (`sum_digest`), "" if there is none.
    """
    facts = (
        (start.round, start.trip, start.attempt),
        (start.active, start.train, start.exchange),
        (replica.items, replica.ratings, replica.digest()),
        last_sum,
    )
    found = hashlib.sha256(repr(facts).encode())
    if replica.config.exchange.backward and last_update is not None:
        round, total = last_update
        if len(total):  # an abandoned round has none
            found.update(_hash_update(total, replica.blocks.in_round(round).model, replica.workers))
    return found.digest()


def _hash_update(total: NDArray[Any], model: Model, workers: WorkerGroup | None) -> bytes:
    """Return the hash of summed gradients of a model's users and weights."""
    views = model.views(torch.from_numpy(total))
    per_user = [views[name].numpy() for name in model.per_user]
    shared = [view.numpy() for name, view in views.items() if name not in model.per_user]
    return hash_users(per_user, workers) + hash_arrays(shared)


def sum_digest(
    parties: Sequence[int],
    trip: tuple[int, int],
    total: NDArray[Any] | None,
    workers: WorkerGroup | None = None,
) -> str:
    """Return the hash of summed neighbourhoods (K, q, C), of the parties in the sum, and of its round and trip."""
    found = hashlib.sha256(repr((list(parties), trip)).encode())
    if total is not None:
        found.update(hash_users(list(total), workers))
    return found.hexdigest()


def list_statement(
    training: str, place: tuple[int, int, int], active: Sequence[int], survivors: Sequence[int]
) -> str:
    """Return what a party signs when it commits to a survivor list; `place` is round, trip and attempt."""
    return json.dumps([training, place, list(active), list(survivors)])
