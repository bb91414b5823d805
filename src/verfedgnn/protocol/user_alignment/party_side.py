"""A party's side of the alignment."""

from __future__ import annotations

import hashlib
import secrets
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from verfedgnn.core.errors import DataError, ProtocolError
from verfedgnn.core.user_rule import UserRule, fewest_parties
from verfedgnn.privacy.id_matching import (
    POINT,
    CurveKey,
    Each,
    Sealer,
    hash_points,
    make_pseudonyms,
    sort_order,
)
from verfedgnn.privacy.identifiers import select_unambiguous
from verfedgnn.protocol.party.policy import Vouching
from verfedgnn.protocol.user_alignment.probes import PROBES, drop_probes, probe_ids
from verfedgnn.protocol.wire.alignment_messages import (
    Aligned,
    AlignHello,
    AlignStart,
    Pseudonyms,
    Sealed,
    UserRows,
)
from verfedgnn.protocol.wire.messages import Message

AlignmentMethod = Literal["keyed", "ecdh"]
KEYHOLDERS = 2
"""Parties that hold a key under ecdh: the first ones of the roster."""
MOST_POINTS = (2**31 - 1 - 64) // POINT
"""Number of points in one sealed message: ChaCha20-Poly1305 of the library takes less than 2 GiB."""

_KEY = b"key"
_POINTS = b"points"
_DUMMY = 32


class PartyAlignment:
    """A party's side of the alignment.

    Args:
        name: The party.
        ids: Its users' ids as its table spells them.
        method: "keyed" or "ecdh".
        agreement: SHA-256 of the federation file.
        vouching: Signs this party's key and checks those of the others.
        each: A `map`, perhaps over several processes.
        pad_to: Number of pseudonyms to send at least; random ones fill it up.
        most_users: Number of users that one party may bring; 0 for no limit.
        fewest_users: Number of users that the federation must have.
        rule: Which users take part.
    """

    def __init__(
        self,
        name: str,
        ids: NDArray[np.str_],
        method: AlignmentMethod,
        agreement: str,
        vouching: Vouching,
        each: Each = map,
        *,
        pad_to: int = 0,
        most_users: int = 0,
        fewest_users: int = 1,
        rule: UserRule = "any",
    ) -> None:
        self.name = name
        self.method = method
        self.agreement = agreement
        self.vouching = vouching
        self.each = each
        self.most_users = most_users
        self.fewest_users = fewest_users
        self.rule = rule
        forms, self._places = select_unambiguous(ids)
        if not len(forms):
            raise DataError(f"party '{name}' has no user whose id is unambiguous: check its column of users")
        self._table_users = len(ids)
        self.ambiguous = len(ids) - len(forms)
        """Number of users left out: their ids are empty, or equal to another's once spelling is normalised."""
        dummies = [secrets.token_bytes(_DUMMY) for _ in range(pad_to - len(forms))]
        own = [text.encode() for text in forms.tolist()] + dummies
        self._ids = own + probe_ids()
        if most_users and len(own) > most_users:
            raise DataError(
                f"party '{name}' brings {len(own):,} users, but the agreement allows {most_users:,}: raise max_users there"
            )
        if method == "ecdh" and len(self._ids) > MOST_POINTS:
            raise DataError(
                f"party '{name}' brings {len(own):,} users, and ecdh seals at most {MOST_POINTS:,} in one message; use keyed alignment"
            )
        self.session: str | None = None
        self.alignment = ""
        """Name of the alignment, once aligned: a hash of its keys, the number of rows, and rows that all parties know."""
        self.users = 0
        """Number of rows of the federation, once aligned."""
        self.rows: NDArray[np.int64] | None = None
        """Row of each user of the table, -1 for those who do not take part; None until aligned."""

    def hello(self) -> AlignHello:
        """Return the first message, to be sent again whenever the connection was lost."""
        self._sealer = Sealer()
        signature = self.vouching.sign("seal", self._sealer.public)
        return AlignHello(
            party=self.name,
            agreement=self.agreement,
            users=len(self._ids),
            seal_key=self._sealer.public,
            seal_signature=signature,
        )

    def handle(self, message: Message) -> list[Message]:
        """Take one message and return those to be sent."""
        if isinstance(message, AlignStart):
            return self._start(message)
        stale = getattr(message, "session", None) != self.session or self.rows is not None
        if not isinstance(message, Sealed | UserRows) or stale:
            return []
        if isinstance(message, UserRows):
            return self._take_rows(message)
        if not message.peer < len(self._keys):
            raise ProtocolError("a sealed message comes from a party that does not exist")
        for kind, take in ((_KEY, self._take_key), (_POINTS, self._take_points)):
            if message.data[: len(kind) + 1].tobytes() == kind + b":":
                sealed = message.data[len(kind) + 1 :].tobytes()
                context = kind + bytes.fromhex(message.session)
                return take(message.peer, self._sealer.open(self._keys[message.peer], context, sealed))
        raise ProtocolError("a sealed message is of an unknown kind")

    def _start(self, message: AlignStart) -> list[Message]:
        keys = message.seal_keys
        signatures = message.seal_signatures
        if len(keys) != len(signatures) or not message.index < len(keys):
            raise ProtocolError("the coordinator starts an alignment with keys that are not the parties' own")
        if keys[message.index] != self._sealer.public:
            return []  # answers an earlier hello
        for party, (key, signature) in enumerate(zip(keys, signatures, strict=True)):
            self.vouching.check("seal", party, key, signature)
        self.session = message.session
        self.index = message.index
        self.rows = None
        self._keys = keys
        self._owners_seen: set[int] = set()
        return self._send_key() if self.method == "keyed" else self._send_points()

    # -- keyed ---------------------------------------------------------------------------------------------------------------

    def _send_key(self) -> list[Message]:
        if self.index:
            return []
        key = secrets.token_bytes(32)
        sealed = [self._seal(peer, _KEY, key) for peer in range(1, len(self._keys))]
        return [*sealed, self._send_pseudonyms(make_pseudonyms(self._ids, key))]

    def _take_key(self, peer: int, key: bytes) -> list[Message]:
        if peer or self.method != "keyed" or len(key) != 32:
            raise ProtocolError("a key for pseudonyms comes from a party that does not draw it")
        return [self._send_pseudonyms(make_pseudonyms(self._ids, key))]

    # -- ecdh ----------------------------------------------------------------------------------------------------------------

    def _send_points(self) -> list[Message]:
        self._curve_key = CurveKey(self.each)
        points = self._curve_key.blind(self._ids)
        return self._pass_on(self.index, points)

    def _take_points(self, peer: int, data: bytes) -> list[Message]:
        owner = int.from_bytes(data[:4])
        points = data[4:]
        if self.method != "ecdh" or not owner < len(self._keys) or owner in self._owners_seen:
            raise ProtocolError("a list of points is not due")
        way = self._way(owner)
        if self.index not in way or way[way.index(self.index) - 1] != peer:
            raise ProtocolError("a list of points comes from a party that should not have it")
        self._owners_seen.add(owner)
        if owner != self.index:
            if self.most_users and len(points) > POINT * (self.most_users + PROBES):
                raise ProtocolError("a list of points holds more users than the agreement allows")
            return self._pass_on(owner, self._curve_key.apply(points))
        if len(points) != POINT * len(self._ids):
            raise ProtocolError("this party's list of points came back with another length")
        holds_key = self.index < KEYHOLDERS
        final = points if holds_key else self._curve_key.remove(points)
        return [self._send_pseudonyms(hash_points(final))]

    def _way(self, owner: int) -> list[int]:
        """Return the parties a list passes, in order: the keyholders other than its owner, and the owner at the end."""
        return [party for party in range(min(KEYHOLDERS, len(self._keys))) if party != owner] + [owner]

    def _pass_on(self, owner: int, points: bytes) -> list[Message]:
        way = self._way(owner)
        following = way[0] if owner == self.index else way[way.index(self.index) + 1]
        if following == self.index:  # a federation of one party
            return [self._send_pseudonyms(hash_points(points))]
        return [self._seal(following, _POINTS, owner.to_bytes(4) + points)]

    # -- both ----------------------------------------------------------------------------------------------------------------

    def _send_pseudonyms(self, values: NDArray[np.uint8]) -> Message:
        self._pseudonyms = values
        self._order = sort_order(values)
        assert self.session is not None
        return Pseudonyms(session=self.session, values=values[self._order])

    def _take_rows(self, message: UserRows) -> list[Message]:
        if not message.users:
            raise DataError("no user is at two parties: check that all spell user ids in the same way")
        if message.rows.shape != (len(self._ids),) or message.rows.dtype.kind != "i":
            raise ProtocolError("the coordinator's rows do not fit the pseudonyms this party sent")
        rows = np.full(len(self._ids), -1)
        rows[self._order] = message.rows
        self._check_rows(rows, message.users)
        placed = drop_probes(rows)
        users = message.users - PROBES
        own = placed[: len(self._places)]
        if (own < 0).all():
            raise DataError("none of this party's users is at enough other parties: use --users any")
        check_user_count(users, self.fewest_users)
        assert self.session is not None
        self.alignment = self._name_alignment(rows, message.users)
        self.users = users
        self.rows = np.full(self._table_users, -1)
        self.rows[self._places] = own
        return [Aligned(session=self.session, users=users)]

    def _check_rows(self, rows: NDArray[np.int64], users: int) -> None:
        """Raise `ProtocolError` unless the coordinator gave rows to exactly those of this party's users who must have one."""
        taken = rows[rows >= 0]
        if (taken >= users).any() or len(np.unique(taken)) != len(taken):
            raise ProtocolError("the coordinator gives two users one row, or a row that does not exist")
        fewest = fewest_parties(self.rule, len(self._keys))
        if (rows[-PROBES:] < 0).any() or (fewest == 1 and len(taken) < len(rows)):
            raise ProtocolError("the coordinator leaves out users who must take part under the agreed rule")
        if fewest == len(self._keys) and len(taken) != users:
            raise ProtocolError(
                f"the coordinator counts {users:,} users, but {len(taken):,} are at all parties"
            )

    def _name_alignment(self, rows: NDArray[np.int64], users: int) -> str:
        """Hash what all parties can see of this alignment; parties whose rows differ get different names."""
        shared = [self.session, self._keys, users, rows[-PROBES:].tolist()]
        if fewest_parties(self.rule, len(self._keys)) == len(self._keys):
            shared.append(
                [self._ids[i].hex() for i in np.argsort(rows)[-users:]]
            )  # all parties have all users
        return hashlib.sha256(repr(shared).encode()).hexdigest()

    def _seal(self, peer: int, kind: bytes, data: bytes) -> Message:
        assert self.session is not None
        sealed = self._sealer.seal(self._keys[peer], kind + bytes.fromhex(self.session), data)
        return Sealed(session=self.session, peer=peer, data=np.frombuffer(kind + b":" + sealed, np.uint8))


def check_user_count(users: int, fewest: int) -> None:
    """Raise `DataError` if a federation has fewer than the agreed number of users."""
    if users < fewest:
        raise DataError(
            f"the federation has {users:,} users, fewer than min_users = {fewest:,}: sums over few users show single users; "
            "check how user ids are spelled, or lower min_users in federation.toml at all members"
        )
