"""What the parties of a masked trip must agree on: what they all received, how many survive, and which trip comes next."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from verfedgnn.config import Config
from verfedgnn.config.party_counts import fewest_parties_in_sum
from verfedgnn.core.array_hash import hash_arrays
from verfedgnn.privacy.masking import share_threshold
from verfedgnn.protocol.round.replica import Replica
from verfedgnn.protocol.wire.messages import RoundStart


def mask_context(start: RoundStart, replica: Replica, last_sum: str) -> bytes:
    """Hash what the coordinator must have sent to all active parties alike; between other parties, masks do not cancel.

    `replica` is at the start of the round. `last_sum` is the hash of the summed neighbourhoods (`sum_digest`), "" if there is none.
    """
    facts = (
        (start.round, start.trip, start.attempt),
        (start.active, start.train, start.exchange),
        (replica.items, replica.ratings, replica.digest()),
        last_sum,
    )
    return hashlib.sha256(repr(facts).encode()).digest()


def sum_digest(parties: Sequence[int], trip: tuple[int, int], total: NDArray[Any] | None) -> str:
    """Return the hash of summed neighbourhoods (K, q, C), of the parties in the sum, and of its round and trip."""
    found = hashlib.sha256(repr((list(parties), trip)).encode())
    if total is not None:
        found.update(hash_arrays([total]))
    return found.hexdigest()


def list_statement(
    training: str, place: tuple[int, int, int], active: Sequence[int], survivors: Sequence[int]
) -> str:
    """Return what a party signs when it commits to a survivor list; `place` is round, trip and attempt."""
    return json.dumps([training, place, list(active), list(survivors)])


def fewest_survivors(config: Config, *, parties: int, active: int, smallest: int) -> int:
    """Return how many of the `active` parties a masked sum must include after dropouts.

    At least the threshold of the shares, the agreed number (`smallest`), and what every sum needs. Parties scale Skellam noise to
    the number of active parties, so a sum of noised values includes all of them.
    """
    if config.gradients.mechanism == "skellam":
        return active
    return max(share_threshold(active), smallest, fewest_parties_in_sum(config, parties))


def following_trip(config: Config, round: int, trip: int) -> tuple[int, int]:
    """Return the round and trip after a trip that was not abandoned."""
    return (round, trip - 1) if trip else (round + 1, config.exchange.refresh)
