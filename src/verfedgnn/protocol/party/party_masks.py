"""A party's masks over its stay in a federation: its key, and the others' keys once it is sure whose they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from verfedgnn.core.errors import ProtocolError
from verfedgnn.privacy.masking import Masker
from verfedgnn.protocol.party.policy import Policy
from verfedgnn.protocol.wire.messages import RoundStart, Welcome

Trip = tuple[int, int, int]
"""Round, trip and attempt."""


class Masks:
    """Of a party called `name`, whose configuration has masks."""

    def __init__(self, name: str, terms: Policy) -> None:
        self.name, self.terms = name, terms
        self._masker: Masker | None = None
        self._told: tuple[Trip, bytes] | None = None
        """Hash of what was told before the last trip."""

    def new_key(self) -> tuple[str, str | None]:
        """A key for a new stay, and the party's signature under it, where somebody vouches."""
        self._masker, self._told, vouching = Masker(), None, self.terms.vouching
        return self._masker.public, None if vouching is None else vouching.sign("mask", self._masker.public)

    def meet(self, message: Welcome | RoundStart, index: int, parties: int) -> None:
        """Take the others' keys, if there are new ones, once it is sure whose they are."""
        if self._masker is None or message.mask_keys is None:
            return
        keys, signatures = message.mask_keys, message.mask_signatures or []
        if len(keys) != parties or (signatures and len(signatures) != len(keys)):
            raise ProtocolError(f"{self.name}: {len(keys)} mask keys for {parties} parties")
        if self.terms.vouching is not None:
            for party, (key, signature) in enumerate(zip(keys, signatures, strict=True)):
                if key:
                    self.terms.vouching.check("mask", party, key, signature)
        self._masker.derive_secrets(index, keys)

    def on(
        self, values: NDArray[Any], message: RoundStart, use: int, context: Callable[[], bytes]
    ) -> NDArray[Any]:
        """Values with this party's masks of a trip; `context` hashes what all active parties have been told before it."""
        if self._masker is None or not self.terms.masks:
            return values
        trip = (message.round, message.trip, message.attempt)
        if self._told is None or self._told[0] != trip:
            self._told = (trip, context())
        about = {"round": message.round, "trip": message.trip, "attempt": message.attempt}
        return self._masker.mask(values, message.active, use=use, context=self._told[1], **about)
