"""The coordinator's part in the masks of one trip: it relays shares, fixes the survivor list, and removes the masks from the sum."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import numpy as np

from verfedgnn.privacy.masking import SEED, MaskKey, MaskStream, lost_streams, self_stream, share_threshold
from verfedgnn.privacy.share_recovery import recover_seeds
from verfedgnn.protocol.round.aggregation import SumError
from verfedgnn.protocol.wire.messages import (
    Hello,
    ListSignature,
    MaskShares,
    ShareRequest,
    Survivors,
    TripShares,
    Unmask,
)

Place = tuple[int, int, int]
"""Round, trip and attempt."""


class MaskedTrip:
    """The masks of one trip among the `active` parties, from their shares to the unmasked sum.

    `request` names the coordinator's request for shares; it is empty if the parties send them ahead.
    """

    def __init__(self, place: Place, active: Sequence[int], *, ahead: bool = False) -> None:
        self.place = place
        self.active = list(active)
        self.request = "" if ahead else secrets.token_hex(8)
        self.threshold = share_threshold(len(self.active))
        self.shares: dict[int, MaskShares] = {}
        self.survivors: list[int] = []
        """The parties in the sum; empty until the list is fixed."""
        self.signatures: dict[int, ListSignature] = {}
        self.reveals: dict[int, Unmask] = {}
        self._seeds: dict[int, bytes] = {}

    @property
    def fields(self) -> dict[str, int]:
        """The trip in the form of a message's fields."""
        return dict(zip(("round", "trip", "attempt"), self.place, strict=True))

    @property
    def complete(self) -> bool:
        """Whether the sum includes all active parties."""
        return self.survivors == self.active

    @property
    def committed(self) -> set[tuple[int, ...]]:
        """The survivor lists that parties committed to in earlier attempts."""
        return {tuple(m.committed) for m in self.shares.values() if m.committed is not None}

    def share_request(self, hellos: Sequence[Hello]) -> ShareRequest:
        """Return the request for shares; `hellos` are those of all parties, in order."""
        chosen = [hellos[index] for index in self.active]
        return ShareRequest(
            **self.fields,
            request=self.request,
            active=self.active,
            mask_keys=[hello.mask_key or "" for hello in chosen],
            mask_signatures=[hello.mask_signature or "" for hello in chosen],
        )

    def take_shares(self, index: int, message: MaskShares) -> str | None:
        """Take a party's shares; return what is wrong with them, if anything."""
        if index not in self.active or index in self.shares:
            return "no shares are due from this party"
        if message.sealed.ndim != 2 or len(message.sealed) != len(self.active):
            return "it sent shares for another number of parties"
        if any(message.key == other.key for other in self.shares.values()):
            return "its mask key is another party's"
        self.shares[index] = message
        return None

    def trip_shares(self, index: int) -> TripShares:
        """Return the keys and shares for one party."""
        column = self.active.index(index)
        return TripShares(
            **self.fields,
            trip_keys=[self.shares[sender].key for sender in self.active],
            sealed=np.stack([self.shares[sender].sealed[column] for sender in self.active]),
        )

    def survivor_message(self) -> Survivors:
        """Return the survivor list, with the signatures once they are collected."""
        signatures = None
        if self.signatures:
            known = {index: message.signature for index, message in self.signatures.items()}
            signatures = [known.get(index, "") for index in self.survivors]
        return Survivors(**self.fields, survivors=self.survivors, signatures=signatures)

    def take_reveal(self, index: int, message: Unmask) -> str | None:
        """Take a party's revealed shares; return what is wrong with them, if anything."""
        if index not in self.survivors or index in self.reveals:
            return "no shares to unmask are due from this party"
        if message.shares.shape != (len(self.active), SEED) or message.shares.dtype != np.uint8:
            return "it revealed shares of another shape"
        self.reveals[index] = message
        return None

    def recover(self) -> None:
        """Recover the seeds that the sum needs; raise `SumError` if shares do not fit a lost party's key."""
        chosen = sorted(self.reveals)[: self.threshold]
        shares = {
            self.active.index(index) + 1: [row.tobytes() for row in self.reveals[index].shares]
            for index in chosen
        }
        self._seeds = dict(zip(self.active, recover_seeds(shares), strict=True))
        for index, seed in self._seeds.items():
            if index not in self.survivors and MaskKey(seed).public != self.shares[index].key:
                raise SumError("the revealed shares do not add up to the key of a lost party")

    def streams(self, context: bytes) -> list[MaskStream]:
        """Return the masks in the sum over the survivors, once their seeds are recovered."""
        keys = {index: self.shares[index].key for index in self.survivors}
        found = []
        for index, seed in self._seeds.items():
            if index in keys:
                found.append(self_stream(seed, context))
            else:
                found += lost_streams(seed, index, keys, context)
        return found
