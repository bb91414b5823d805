"""A party's masks during one stay in a federation: its own key, and the other parties' verified keys."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from verfedgnn.core.errors import ProtocolError
from verfedgnn.privacy.masking import Masker
from verfedgnn.protocol.party.exchange_state import ExchangeState
from verfedgnn.protocol.party.incoming import split_updates
from verfedgnn.protocol.party.policy import Policy
from verfedgnn.protocol.round.replica import Replica
from verfedgnn.protocol.wire.messages import RoundStart, Welcome


class PartyMasks:
    """Masks of one party. Every stay has a new key."""

    def __init__(self, name: str, policy: Policy) -> None:
        self.name = name
        self.policy = policy
        self._masker = Masker()
        self._context: tuple[tuple[int, int, int], bytes] | None = None
        """Round, trip and attempt of the last masked message, and the context of its masks."""

    @property
    def key(self) -> str:
        """The party's public key of this stay."""
        return self._masker.public

    @property
    def signature(self) -> str | None:
        """The party's signature of its key; None where nobody vouches for keys."""
        vouching = self.policy.vouching
        return None if vouching is None else vouching.sign(self.policy.mask_purpose, self.key)

    def take_keys(self, message: Welcome | RoundStart, index: int, parties: int) -> None:
        """Verify and take the other parties' keys, if the message has any."""
        if message.mask_keys is None:
            return
        keys = message.mask_keys
        signatures = message.mask_signatures or []
        if len(keys) != parties or (signatures and len(signatures) != len(keys)):
            raise ProtocolError(f"{self.name}: received {len(keys)} mask keys for {parties} parties")
        if self.policy.vouching is not None:
            for party, (key, signature) in enumerate(zip(keys, signatures, strict=True)):
                if key:
                    self.policy.vouching.check(self.policy.mask_purpose, party, key, signature)
        self._masker.derive_secrets(index, keys)

    def apply(
        self, values: NDArray[Any], message: RoundStart, use: int, context: Callable[[], bytes]
    ) -> NDArray[Any]:
        """Add this party's masks of a trip to `values`. `context` is called once a trip (`mask_context`)."""
        if not self.policy.masks:
            return values
        trip = (message.round, message.trip, message.attempt)
        if self._context is None or self._context[0] != trip:
            self._context = (trip, context())
        return self._masker.mask(
            values,
            message.active,
            use=use,
            context=self._context[1],
            round=message.round,
            trip=message.trip,
            attempt=message.attempt,
        )


def mask_context(message: RoundStart, replica: Replica, exchange: ExchangeState) -> bytes:
    """Hash everything that the coordinator must have told all active parties alike.

    Masks depend on it: between parties that were told different things they do not cancel.
    """
    facts = (message.active, replica.items, replica.ratings, replica.digest())
    found = hashlib.sha256(repr(facts).encode())
    if replica.config.exchange.backward and message.updates is not None:
        found.update(split_updates(message, replica.blocks)[-1].total.tobytes())
    last = exchange.received.get(replica.blocks.in_round(message.round).index)
    found.update(repr((message.train, message.exchange, "" if last is None else last.digest)).encode())
    return found.digest()
