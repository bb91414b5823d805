"""The masks of a round on both sides: what the parties must agree on, each party's masks, and the coordinator's part."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verfedgnn.config import Config
from verfedgnn.core.array_files import hash_arrays
from verfedgnn.core.errors import ProtocolError
from verfedgnn.privacy import masking
from verfedgnn.privacy.id_matching import Sealer
from verfedgnn.privacy.masking import SEED, SELF, MaskKey, MaskStream, derive_stream, share_threshold
from verfedgnn.privacy.protections import Protection, SumError, protection_of
from verfedgnn.protocol import messages as msg
from verfedgnn.protocol.messages import Place, RoundStart
from verfedgnn.protocol.party_state import LOCAL, Policy, name_mask_purpose
from verfedgnn.protocol.replica import Replica


def mask_context(start: RoundStart, replica: Replica, last_sum: str) -> bytes:
    """Hash what the coordinator must have sent to all active parties alike; between other parties, masks do not cancel.

    `replica` is at the start of the round. `last_sum` is the hash of the summed neighbourhoods (`sum_digest`), "" if there is none.
    """
    facts = start.place, start.active, (replica.items, replica.ratings, replica.digest()), last_sum
    return hashlib.sha256(repr(facts).encode()).digest()


def sum_digest(parties: Sequence[int], round: int, total: NDArray[Any] | None) -> str:
    """Return the hash of summed neighbourhoods (K, q, C), of the parties in the sum, and of its round."""
    digest = hashlib.sha256(repr((list(parties), round)).encode())
    if total is not None:
        digest.update(hash_arrays([total]))
    return digest.hexdigest()


def list_statement(training: str, place: Place, active: Sequence[int], survivors: Sequence[int]) -> str:
    """Return what a party signs when it commits to a survivor list."""
    return json.dumps([training, place, list(active), list(survivors)])


# -- A party's masks during one stay (docs/protocol.md, "Masks") --------------------------------------------
#
#     ShareRequest -> MaskShares; RoundShares; RoundStart -> masked values; Survivors -> ListSignature or Unmask
#
# Seeds and shares live in memory only, and only until they are revealed or the next round replaces them. What must survive a restart
# is the list that the party committed to (`ListCommitments`).

SEALED = 12 + 2 * SEED + 16
"""Bytes of sealed shares: a nonce, a share of each seed, and a tag."""


class ListCommitments:
    """The survivor lists that a party committed to: one for each round of a training, across attempts and restarts.

    This class keeps them in memory; a federation also writes them to disk.
    """

    def __init__(self) -> None:
        self.lists: dict[tuple[str, int], list[int]] = {}
        """The list of each round, by training and round."""

    def commit(self, training: str, round: int, survivors: Sequence[int]) -> None:
        """Commit to a list; raise `ProtocolError` if the party committed to another list of the same round."""
        known = self.lists.setdefault((training, round), list(survivors))
        if known != list(survivors):
            raise ProtocolError(
                f"the coordinator asks for a second sum in round {round}, over parties {list(survivors)} after {known}; "
                "the difference of two sums would reveal single parties"
            )


@dataclass
class RoundSecrets:
    """The secrets of one attempt of a round."""

    place: Place
    active: list[int]
    request: str
    """Name of the coordinator's request."""
    self_seed: bytes = field(default_factory=lambda: secrets.token_bytes(SEED))
    """The seed from which a party draws the mask that it adds for itself."""
    key: MaskKey = field(default_factory=lambda: MaskKey(secrets.token_bytes(SEED)))
    """Mask key of this attempt."""
    keys: dict[int, str] = field(default_factory=dict)
    """Public mask keys of the active parties; empty until the others' shares are here."""
    shares: dict[int, bytes] = field(default_factory=dict)
    """This party's shares of the active parties' two seeds."""
    answered: bool = False
    """Whether the party answered with masked values."""


class PartyMasks:
    """Masks of one party. Every stay has a new key, and every attempt of a round has new seeds."""

    def __init__(self, name: str, config: Config, policy: Policy, commitments: ListCommitments) -> None:
        self.name, self.config, self.policy, self.commitments = name, config, policy, commitments
        self._sealer = Sealer()
        self._purpose = name_mask_purpose(policy.alignment)
        self.key: str | None = self._sealer.public
        """The party's public key of this stay."""
        self.signature = policy.vouching.sign(self._purpose, self._sealer.public) or None
        """The party's signature of its key; None where nobody vouches for keys."""
        self._training, self._index, self._parties = "", -1, 0
        self._protection: Protection
        self._stay_keys: dict[int, str] = {}
        """Verified public keys of the other parties' stays."""
        self._secrets: RoundSecrets | None = None
        """The attempt whose values may still be unmasked, or whose shares are being exchanged."""
        self._last: Place = (0, 0)
        """The last attempt that was masked."""

    def join(self, training: str, index: int, parties: int) -> None:
        """Note the training, and the party's place in it."""
        self._training, self._index, self._parties = training, index, parties
        self._protection = protection_of(self.config, parties)

    def share(self, message: msg.ShareRequest) -> msg.MaskShares:
        """Draw the seeds of a round, and seal a share of them for every other party."""
        if message.place <= self._last:
            raise self._error(f"asks for new masks of round {message.round}, which was answered")
        self._stay_keys = self._check_keys(message)
        attempt = self._secrets = RoundSecrets(message.place, message.active, message.request)
        key, rows = attempt.key.public, b""
        shares = masking.split_seeds([attempt.self_seed, attempt.key.seed], len(attempt.active))
        for party, share in zip(attempt.active, shares, strict=True):
            if party == self._index:
                attempt.shares[party] = share
                rows += bytes(SEALED)
            else:
                about = self._about(attempt, self._index, party, key)
                rows += self._sealer.seal(self._stay_keys[party], about, share)
        return msg.MaskShares(
            round=message.round,
            attempt=message.attempt,
            request=attempt.request,
            key=key,
            sealed=np.frombuffer(rows, np.uint8).reshape(-1, SEALED),
            committed=self.commitments.lists.get((self._training, message.round)),
        )

    def _check_keys(self, message: msg.ShareRequest) -> dict[int, str]:
        """Return the verified keys of the active parties' stays; raise `ProtocolError` if anything about them is wrong."""
        active = message.active
        known = range(self._parties)
        if active != sorted(set(active)) or self._index not in active or not set(active) <= set(known):
            raise self._error("asks for masks among parties that do not exist, or without this one")
        if len(active) < max(2, self.policy.smallest):
            raise self._error(f"asks for masks among {len(active)} parties, fewer than the agreed number")
        if not len(active) == len(message.mask_keys) == len(message.mask_signatures):
            raise self._error("sent another number of mask keys than of parties")
        keys = dict(zip(active, message.mask_keys, strict=True))
        if keys[self._index] != self.key or len(set(keys.values())) != len(keys):
            raise self._error("sent public keys that are not those of the parties")
        for (party, key), signature in zip(keys.items(), message.mask_signatures, strict=True):
            self.policy.vouching.check(self._purpose, party, key, signature)
        return keys

    def _about(self, attempt: RoundSecrets, sender: int, receiver: int, key: str) -> bytes:
        """Return what a sealed share is bound to."""
        facts = [self._training, attempt.place, attempt.request, attempt.active, sender, receiver, key]
        return b"verfedgnn shares 2" + json.dumps(facts).encode()

    def take_shares(self, message: msg.RoundShares) -> None:
        """Open the shares that the other parties sealed for this one."""
        attempt = self._secrets
        if attempt is None or attempt.place != message.place or attempt.keys:
            raise self._error(f"sent shares of round {message.round} that were not asked for")
        shape, sealed = (len(attempt.active), SEALED), message.sealed
        if len(message.round_keys) != shape[0] or sealed.shape != shape or sealed.dtype != np.uint8:
            raise self._error("sent shares of another shape")
        keys = dict(zip(attempt.active, message.round_keys, strict=True))
        if keys[self._index] != attempt.key.public or len(set(keys.values())) != len(keys):
            raise self._error("sent mask keys that are not those of the parties")
        for row, (party, key) in zip(sealed, keys.items(), strict=True):
            if party != self._index:
                about = self._about(attempt, party, self._index, key)
                try:
                    attempt.shares[party] = self._sealer.open(self._stay_keys[party], about, row.tobytes())
                except ProtocolError:
                    problem = f"sent shares of party {party} that do not open; they were changed or replayed"
                    raise self._error(problem) from None
        attempt.keys = keys

    def check_start(self, message: RoundStart) -> RoundSecrets | None:
        """Return the secrets of a round; raise `ProtocolError` unless the shares of all its parties are here."""
        attempt, active = self._secrets, message.active
        if not self.policy.masks:
            return None
        if attempt is None or attempt.place != message.place or attempt.active != active or not attempt.keys:
            raise self._error(f"starts round {message.round} without the shares of its parties")
        return attempt

    def hide(
        self, values: NDArray[Any], message: RoundStart, context: bytes, use: int, bits: int
    ) -> NDArray[Any]:
        """Return `values` with this party's masks, as residues of that many bits; on one machine masks would hide nothing.

        `context` is that of the round (`mask_context`).
        """
        attempt, streams = self.check_start(message), []
        if attempt is not None:
            attempt.answered = True
            self._last = message.place
            own = derive_stream(attempt.self_seed, SELF, context)
            streams = [own, *attempt.key.streams(self._index, attempt.keys, context)]
        return masking.add_masks(values, streams, use, bits)

    def unmask(self, message: msg.Survivors) -> msg.ListSignature | msg.Unmask:
        """Commit to a survivor list; sign it if a party was lost, and reveal shares once enough parties committed to it."""
        attempt, survivors = self._secrets, message.survivors
        if attempt is None or not attempt.answered or attempt.place != message.place:
            raise self._error(f"asks to unmask round {message.round}, which is not open here")
        active = attempt.active
        if survivors != sorted(set(survivors)) or not set(survivors) <= set(active):
            raise self._error("names survivors that did not take part")
        if self._index not in survivors:
            raise self._error("asks a party to unmask a sum that it is not part of")
        fewest = self._protection.fewest_survivors(len(active), self.policy.smallest)
        if len(survivors) < fewest:
            count = f"{len(survivors)} of {len(active)} parties"
            raise self._error(f"asks to unmask a sum over {count}, fewer than {fewest}")
        self.commitments.commit(self._training, message.round, survivors)
        if survivors != active:
            statement = list_statement(self._training, attempt.place, active, survivors)
            if message.signatures is None:
                signature = self.policy.vouching.sign("survivors", statement)
                return msg.ListSignature(round=message.round, attempt=message.attempt, signature=signature)
            self._check_signatures(message, statement, share_threshold(len(active)))
        self._secrets = None  # from here on, no second share can leave
        halves = {True: slice(SEED), False: slice(SEED, None)}
        rows = b"".join(attempt.shares[party][halves[party in survivors]] for party in active)
        shares = np.frombuffer(rows, np.uint8).reshape(-1, SEED)
        return msg.Unmask(round=message.round, attempt=message.attempt, shares=shares)

    def _check_signatures(self, message: msg.Survivors, statement: str, needed: int) -> None:
        """Raise `ProtocolError` unless enough survivors have signed the list."""
        signatures, valid = message.signatures or [], 0
        if len(signatures) != len(message.survivors):
            raise self._error("sent another number of signatures than of survivors")
        for party, signature in zip(message.survivors, signatures, strict=True):
            with suppress(ProtocolError):
                self.policy.vouching.check("survivors", party, statement, signature)
                valid += 1
        if valid < needed:
            raise self._error(
                f"shows {valid} signatures of its survivor list, but {needed} parties must have signed the same list"
            )

    def _error(self, problem: str) -> ProtocolError:
        return ProtocolError(
            f"{self.name}: the coordinator {problem}; compare transcripts with the other parties"
        )


class NoMasks(PartyMasks):
    """The masks of a party whose configuration has none."""

    def __init__(self, name: str, config: Config, policy: Policy, commitments: ListCommitments) -> None:
        super().__init__(name, config, LOCAL, commitments)
        self.key = None

    def hide(self, values: NDArray[Any], *_: Any) -> NDArray[Any]:
        """Return `values`."""
        return values


# -- The coordinator's part in the masks of a round: it relays shares, fixes the survivor list, and removes the masks from the sum


@dataclass
class MaskedRound:
    """The masks of one attempt of a round among the `active` parties, from their shares to the unmasked sum."""

    place: Place
    active: list[int]
    request: str = field(default_factory=lambda: secrets.token_hex(8))
    """Name of the request for shares."""
    shares: dict[int, msg.MaskShares] = field(default_factory=dict)
    survivors: list[int] = field(default_factory=list)
    """The parties in the sum; empty until the list is fixed."""
    signatures: dict[int, msg.ListSignature] = field(default_factory=dict)
    reveals: dict[int, msg.Unmask] = field(default_factory=dict)

    @property
    def committed(self) -> set[tuple[int, ...]]:
        """The survivor lists that parties committed to in earlier attempts."""
        return {tuple(m.committed) for m in self.shares.values() if m.committed is not None}

    def take(self, index: int, message: msg.MaskShares | msg.ListSignature | msg.Unmask) -> str | None:
        """Take a party's shares, signature or revealed shares; return what is wrong with them, if anything."""
        if isinstance(message, msg.MaskShares):
            if index not in self.active or index in self.shares:
                return "no shares are due from this party"
            if message.sealed.ndim != 2 or len(message.sealed) != len(self.active):
                return "it sent shares for another number of parties"
            if any(message.key == other.key for other in self.shares.values()):
                return "its mask key is another party's"
            self.shares[index] = message
        elif isinstance(message, msg.Unmask):
            if index not in self.survivors or index in self.reveals:
                return "no shares to unmask are due from this party"
            if message.shares.shape != (len(self.active), SEED) or message.shares.dtype != np.uint8:
                return "it revealed shares of another shape"
            self.reveals[index] = message
        elif index in self.survivors:
            self.signatures[index] = message
        return None

    def streams(self, context: bytes) -> list[MaskStream]:
        """Return the masks in the sum over the survivors; raise `SumError` if shares do not fit a lost party's key."""
        keys = {index: self.shares[index].key for index in self.survivors}
        shares = {
            self.active.index(index) + 1: [row.tobytes() for row in self.reveals[index].shares]
            for index in sorted(self.reveals)[: share_threshold(len(self.active))]
        }
        streams = []
        for index, seed in zip(self.active, masking.recover_seeds(shares), strict=True):
            if index in keys:
                streams.append(derive_stream(seed, SELF, context))
            elif MaskKey(seed).public != self.shares[index].key:
                raise SumError("the revealed shares do not add up to the key of a lost party")
            else:
                streams += masking.lost_streams(seed, index, keys, context)
        return streams
