"""What the coordinator must have sent to all active parties alike. Masks depend on it, so between other parties they do not cancel."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verfedgnn.protocol.round.replica import Replica
from verfedgnn.protocol.wire.messages import RoundStart


def mask_context(
    start: RoundStart, replica: Replica, last_update: NDArray[Any] | None, last_sum: str
) -> bytes:
    """Hash the common inputs of a trip.

    `replica` is at the start of the round. `last_update` is the update that a backward exchange reads, and `last_sum` the hash of
    the summed neighbourhoods of the round's users (`sum_digest`), "" if there is none.
    """
    facts = (
        (start.round, start.trip, start.attempt),
        (start.active, start.train, start.exchange),
        (replica.items, replica.ratings, replica.digest()),
        last_sum,
    )
    found = hashlib.sha256(repr(facts).encode())
    if replica.config.exchange.backward and last_update is not None:
        found.update(last_update.tobytes())
    return found.digest()


def sum_digest(parties: Sequence[int], trip: tuple[int, int], total: NDArray[Any] | None) -> str:
    """Return the hash of summed neighbourhoods, of the parties in the sum, and of its round and trip."""
    found = hashlib.sha256(repr((list(parties), trip)).encode())
    if total is not None:
        found.update(np.ascontiguousarray(total).data)
    return found.hexdigest()


def list_statement(
    training: str, place: tuple[int, int, int], active: Sequence[int], survivors: Sequence[int]
) -> str:
    """Return what a party signs when it commits to a survivor list; `place` is round, trip and attempt."""
    return json.dumps([training, place, list(active), list(survivors)])
