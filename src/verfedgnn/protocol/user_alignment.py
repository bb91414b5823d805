"""User alignment before training, as two state machines around the arithmetic of `privacy.id_matching`.

1. Every party turns its ids into pseudonyms. keyed: the first party draws a key and seals it for each other one. ecdh: each
   list of blinded ids passes the keyholders, sealed, and returns to its owner.
2. All send their pseudonyms to the coordinator, which matches them and draws the rows in random order.
3. Every party learns the row of each of its own users and the number of rows.

Every party adds the same invented users to its list, the probes. To the coordinator their pseudonyms look like those of users whom all
parties have. If it gives the parties different rows for the same users, it very likely does so for a probe, too.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from verfedgnn.core.errors import DataError, ProtocolError
from verfedgnn.data.parties import UserRule, fewest_parties
from verfedgnn.privacy import id_matching as matching
from verfedgnn.privacy.id_matching import POINT, CurveKey, Sealer
from verfedgnn.protocol import messages as msg
from verfedgnn.protocol.party_state import Vouching

PROBES = 64
"""Number of probes. A coordinator that moves a tenth of the users whom all parties have goes unnoticed once in 850 times."""


REVEALS = {
    "keyed": (
        "The coordinator learns how many users each party has and how many any of them share, under pseudonyms. Together with "
        "any one party, which knows the key, it could look users up."
    ),
    "ecdh": (
        "The coordinator learns how many users each party has and how many any of them share, under pseudonyms. It could look "
        "users up only together with the first two parties of the roster, which also learn how many users each party has."
    ),
    "none": "Nothing is exchanged: every party's file must list the same users. A hash of the whole list is compared.",
}
"""What each method shows to the coordinator and to keyholders."""
RULE_REVEALS = {
    "any": "The alignment alone shows parties the number of users, not which of their own users others have.",
    "all": "Parties learn which of their users all the others have.",
    "some": "Parties learn which of their users are at {} parties or more, not at which.",
}
"""What each rule shows to the parties."""


def describe_reveals(method: str, rule: UserRule) -> str:
    """Return what an alignment shows to whom, in words."""
    if method == "none":
        return REVEALS[method]
    shown = RULE_REVEALS[rule] if isinstance(rule, str) else RULE_REVEALS["some"].format(rule)
    return f"{REVEALS[method]} {shown}"


@dataclass(frozen=True)
class AlignmentRules:
    """What a federation agrees on about the alignment of its users."""

    method: Literal["keyed", "ecdh"]
    agreement: str
    """SHA-256 of the federation file."""
    users: UserRule = "any"
    """Which users take part."""
    most_users: int = 0
    """Number of users that one party may bring; 0 for no limit."""
    fewest_users: int = 1
    """Number of users that the federation must have."""
    least_overlap: float = 0.0
    """Share of each party's users that some other party must have."""


KEYHOLDERS = 2
"""Parties that hold a key under ecdh: the first ones of the roster."""
MOST_POINTS = (2**31 - 1 - 64) // POINT
"""Number of points in one sealed message: ChaCha20-Poly1305 of the library takes less than 2 GiB."""
_KEY = b"key"
_POINTS = b"points"
_DUMMY = 32


class PartyAlignment:
    """A party's side of the alignment.

    `ids` are its users' ids as its table spells them. Random pseudonyms fill the list up to `pad_to`.
    """

    def __init__(
        self,
        name: str,
        ids: NDArray[np.str_],
        rules: AlignmentRules,
        vouching: Vouching,
        *,
        pad_to: int = 0,
    ) -> None:
        self.name, self.rules, self.vouching = name, rules, vouching
        forms, self._places = matching.select_unambiguous(ids)
        if not len(forms):
            raise DataError(f"party '{name}' has no user whose id is unambiguous: check its column of users")
        self._table_users = len(ids)
        self.ambiguous = len(ids) - len(forms)
        """Number of users left out: their ids are empty, or equal to another's once spelling is normalised."""
        dummies = [secrets.token_bytes(_DUMMY) for _ in range(pad_to - len(forms))]
        users = [text.encode() for text in forms.tolist()] + dummies
        # No id in a table starts with a null byte.
        self._ids = [*users, *(b"\0probe %d" % number for number in range(PROBES))]
        if 0 < rules.most_users < len(users):
            raise DataError(
                f"party '{name}' brings {len(users):,} users, but the agreement allows {rules.most_users:,}: raise max_users there"
            )
        if rules.method == "ecdh" and len(self._ids) > MOST_POINTS:
            raise DataError(
                f"party '{name}' brings {len(users):,} users, and ecdh seals at most {MOST_POINTS:,} in one message; use keyed alignment"
            )
        self.session = ""
        self.alignment = ""
        """Name of the alignment, once aligned: a hash of its keys, the number of rows, and rows that all parties know."""
        self.users = 0
        """Number of rows of the federation, once aligned."""
        self.rows: NDArray[np.int64] | None = None
        """Row of each user of the table, -1 for those who do not take part; None until aligned."""

    def hello(self) -> msg.AlignHello:
        """Return the first message, to be sent again whenever the connection was lost."""
        self._sealer = Sealer()
        return msg.AlignHello(
            party=self.name,
            agreement=self.rules.agreement,
            users=len(self._ids),
            seal_key=self._sealer.public,
            seal_signature=self.vouching.sign("seal", self._sealer.public),
        )

    def handle(self, message: msg.Message) -> list[msg.Message]:
        """Take one message and return those to be sent."""
        if isinstance(message, msg.AlignStart):
            return self._start(message)
        if not isinstance(message, msg.Sealed | msg.UserRows):
            return []
        if message.session != self.session or self.rows is not None:
            return []  # of an earlier session
        if isinstance(message, msg.UserRows):
            return self._take_rows(message)
        if not message.peer < len(self._keys):
            raise ProtocolError("a sealed message comes from a party that does not exist")
        kind = message.data[: len(_POINTS) + 1].tobytes().partition(b":")[0]
        if kind not in (_KEY, _POINTS):
            raise ProtocolError("a sealed message is of an unknown kind")
        sealed, context = message.data[len(kind) + 1 :].tobytes(), kind + bytes.fromhex(message.session)
        opened = self._sealer.open(self._keys[message.peer], context, sealed)
        if kind == _POINTS:
            return self._take_points(message.peer, opened)
        if message.peer or self.rules.method != "keyed" or len(opened) != 32:
            raise ProtocolError("a key for pseudonyms comes from a party that does not draw it")
        return [self._send_pseudonyms(matching.make_pseudonyms(self._ids, opened))]

    def _start(self, message: msg.AlignStart) -> list[msg.Message]:
        keys, signatures = message.seal_keys, message.seal_signatures
        if len(keys) != len(signatures) or not message.index < len(keys):
            raise ProtocolError("the coordinator starts an alignment with keys that are not the parties' own")
        if keys[message.index] != self._sealer.public:
            return []  # answers an earlier hello
        for party, (key, signature) in enumerate(zip(keys, signatures, strict=True)):
            self.vouching.check("seal", party, key, signature)
        self.session, self.index, self._keys, self.rows = message.session, message.index, keys, None
        self._owners_seen: set[int] = set()
        if self.rules.method == "ecdh":
            self._curve_key = CurveKey()
            return self._pass_on(self.index, self._curve_key.blind(self._ids))
        if self.index:
            return []
        drawn = secrets.token_bytes(32)
        sealed = [self._seal(peer, _KEY, drawn) for peer in range(1, len(keys))]
        return [*sealed, self._send_pseudonyms(matching.make_pseudonyms(self._ids, drawn))]

    def _take_points(self, peer: int, data: bytes) -> list[msg.Message]:
        owner, points, most = int.from_bytes(data[:4]), data[4:], self.rules.most_users
        if self.rules.method != "ecdh" or not owner < len(self._keys) or owner in self._owners_seen:
            raise ProtocolError("a list of points is not due")
        way = self._way(owner)
        if self.index not in way or way[way.index(self.index) - 1] != peer:
            raise ProtocolError("a list of points comes from a party that should not have it")
        self._owners_seen.add(owner)
        if owner != self.index:
            if most and len(points) > POINT * (most + PROBES):
                raise ProtocolError("a list of points holds more users than the agreement allows")
            return self._pass_on(owner, self._curve_key.apply(points))
        if len(points) != POINT * len(self._ids):
            raise ProtocolError("this party's list of points came back with another length")
        final = points if self.index < KEYHOLDERS else self._curve_key.remove(points)
        return [self._send_pseudonyms(matching.hash_points(final))]

    def _way(self, owner: int) -> list[int]:
        """Return the parties a list passes, in order: the keyholders other than its owner, and the owner at the end."""
        return [party for party in range(min(KEYHOLDERS, len(self._keys))) if party != owner] + [owner]

    def _pass_on(self, owner: int, points: bytes) -> list[msg.Message]:
        way = self._way(owner)
        following = way[0] if owner == self.index else way[way.index(self.index) + 1]
        if following == self.index:  # a federation of one party
            return [self._send_pseudonyms(matching.hash_points(points))]
        return [self._seal(following, _POINTS, owner.to_bytes(4) + points)]

    def _send_pseudonyms(self, values: NDArray[np.uint8]) -> msg.Message:
        self._pseudonyms = values
        self._order = matching.sort_order(values)
        return msg.Pseudonyms(session=self.session, values=values[self._order])

    def _take_rows(self, message: msg.UserRows) -> list[msg.Message]:
        if not message.users:
            raise DataError("no user is at two parties: check that all spell user ids in the same way")
        if message.rows.shape != (len(self._ids),) or message.rows.dtype.kind != "i":
            raise ProtocolError("the coordinator's rows do not fit the pseudonyms this party sent")
        rows = np.full(len(self._ids), -1)
        rows[self._order] = message.rows
        self._check_rows(rows, message.users)
        probes, placed = np.sort(rows[-PROBES:]), rows[: len(self._places)]
        # Rows as if there were no probes.
        placed = np.where(placed < 0, -1, placed - np.searchsorted(probes, placed))
        if (placed < 0).all():
            raise DataError("none of this party's users is at enough other parties: use --users any")
        check_user_count(message.users - PROBES, self.rules.fewest_users)
        self.alignment = self._name_alignment(rows, message.users)
        self.users = message.users - PROBES
        self.rows = np.full(self._table_users, -1)
        self.rows[self._places] = placed
        return [msg.Aligned(session=self.session, users=self.users)]

    def _check_rows(self, rows: NDArray[np.int64], users: int) -> None:
        """Raise `ProtocolError` unless the coordinator gave rows to exactly those of this party's users who must have one."""
        taken = rows[rows >= 0]
        if (taken >= users).any() or len(np.unique(taken)) != len(taken):
            raise ProtocolError("the coordinator gives two users one row, or a row that does not exist")
        fewest = fewest_parties(self.rules.users, len(self._keys))
        if (rows[-PROBES:] < 0).any() or (fewest == 1 and len(taken) < len(rows)):
            raise ProtocolError("the coordinator leaves out users who must take part under the agreed rule")
        if fewest == len(self._keys) and len(taken) != users:
            raise ProtocolError(
                f"the coordinator counts {users:,} users, but {len(taken):,} are at all parties"
            )

    def _name_alignment(self, rows: NDArray[np.int64], users: int) -> str:
        """Hash what all parties can see of this alignment; parties whose rows differ get different names."""
        shared = [self.session, self._keys, users, rows[-PROBES:].tolist()]
        if fewest_parties(self.rules.users, len(self._keys)) == len(self._keys):  # all parties have all users
            shared.append([self._ids[i].hex() for i in np.argsort(rows)[-users:]])
        return hashlib.sha256(repr(shared).encode()).hexdigest()

    def _seal(self, peer: int, kind: bytes, data: bytes) -> msg.Message:
        sealed = self._sealer.seal(self._keys[peer], kind + bytes.fromhex(self.session), data)
        return msg.Sealed(session=self.session, peer=peer, data=np.frombuffer(kind + b":" + sealed, np.uint8))


def check_user_count(users: int, fewest: int) -> None:
    """Raise `DataError` if a federation has fewer than the agreed number of users."""
    if users < fewest:
        raise DataError(
            f"the federation has {users:,} users, fewer than min_users = {fewest:,}: sums over few users show single users; "
            "check how user ids are spelled, or lower min_users in federation.toml at all members"
        )


class CoordinatorAlignment:
    """The coordinator's side of the alignment: it relays sealed messages and matches pseudonyms."""

    def __init__(self, names: Sequence[str], rules: AlignmentRules) -> None:
        self.names, self.rules = list(names), rules
        self.hellos: dict[str, msg.AlignHello] = {}
        self._reset()

    def _reset(self) -> None:
        self.session = ""
        self.sets: dict[str, msg.Pseudonyms] = {}
        self.users: dict[str, int] = {}
        """Number of rows, as confirmed by the parties that have theirs."""

    def handle(self, name: str, message: msg.Message) -> list[tuple[str, msg.Message]]:
        """Take one message and return those to be sent, each with its recipient."""
        if isinstance(message, msg.AlignHello):
            return self._hello(name, message)
        if not isinstance(message, msg.Sealed | msg.Pseudonyms | msg.Aligned):
            raise ProtocolError(f"{name}: unexpected {type(message).__name__} while users are aligned")
        if message.session != self.session:
            return []  # of an earlier session
        if isinstance(message, msg.Sealed):
            if not message.peer < len(self.names):
                raise ProtocolError(f"{name}: a sealed message for a party that does not exist")
            return [(self.names[message.peer], message.model_copy(update={"peer": self.names.index(name)}))]
        if isinstance(message, msg.Pseudonyms):
            return self._gather(name, message)
        self.users[name] = message.users
        if len(set(self.users.values())) > 1:
            raise ProtocolError(f"{name}: it counts {message.users:,} users, other parties another number")
        if len(self.users) == len(self.names):
            self.hellos, self.session = {}, ""
        return []

    def left(self, name: str) -> None:
        """Note that a party is gone; the alignment starts over when it is back."""
        if self.hellos.pop(name, None) is not None and name not in self.users:
            self._reset()

    def must_align(self, name: str) -> bool:
        """Return whether an alignment is under way whose result this party lacks."""
        return bool(self.hellos) and name not in self.users

    @property
    def missing(self) -> list[str]:
        """Parties that are not ready."""
        return [name for name in self.names if name not in self.hellos]

    def check_hello(self, name: str, message: msg.AlignHello) -> None:
        """Raise `ProtocolError` if a party has another agreement, or more users than agreed."""
        if message.party != name or message.agreement != self.rules.agreement:
            raise ProtocolError(
                f"{name}: its federation file is not the coordinator's; run `verfedgnn federation accept`"
            )
        most, users = self.rules.most_users, message.users - PROBES
        if 0 < most < users:
            raise ProtocolError(f"{name}: it brings {users:,} users, but the agreement allows {most:,}")

    def _hello(self, name: str, message: msg.AlignHello) -> list[tuple[str, msg.Message]]:
        self.check_hello(name, message)
        self.hellos[name] = message
        self._reset()
        if self.missing:
            return [(name, msg.Waiting(missing=self.missing))]
        self.session = secrets.token_hex(16)
        hellos = [self.hellos[name] for name in self.names]
        start = msg.AlignStart(
            session=self.session,
            index=0,
            seal_keys=[hello.seal_key for hello in hellos],
            seal_signatures=[hello.seal_signature for hello in hellos],
        )
        return [(name, start.model_copy(update={"index": index})) for index, name in enumerate(self.names)]

    def _gather(self, name: str, message: msg.Pseudonyms) -> list[tuple[str, msg.Message]]:
        if name in self.sets:
            raise ProtocolError(f"{name}: it sends pseudonyms twice")
        values: NDArray[Any] = message.values
        try:
            matching.check_set(values)
        except ProtocolError as error:
            raise ProtocolError(f"{name}: {error}") from None
        count, announced = len(values), self.hellos[name].users
        if count != announced:
            raise ProtocolError(f"{name}: it sends {count:,} pseudonyms and announced {announced:,}")
        self.sets[name] = message
        if len(self.sets) < len(self.names):
            return []
        sets: list[NDArray[Any]] = [self.sets[name].values for name in self.names]
        self.sets = {}
        self._check_overlap(sets)
        rows, users = matching.match_users(sets, fewest_parties(self.rules.users, len(sets)), probes=PROBES)
        return [
            (name, msg.UserRows(session=message.session, users=users, rows=places.astype(np.int32)))
            for name, places in zip(self.names, rows, strict=True)
        ]

    def _check_overlap(self, sets: Sequence[NDArray[Any]]) -> None:
        """Raise `DataError` if the parties share fewer users than agreed."""
        least = self.rules.least_overlap
        shared = [count - PROBES for count in matching.count_shared(sets)]
        counts = [len(values) - PROBES for values in sets]
        if len(sets) > 1 and any(one < least * count for one, count in zip(shared, counts, strict=True)):
            each = zip(self.names, shared, counts, strict=True)
            text = ", ".join(f"{name} shares {one:,} of {count:,}" for name, one, count in each)
            raise DataError(
                f"too few common users: {text}; min_overlap = {least:g}. Check the exports and how user ids are spelled, or lower "
                "min_overlap in federation.toml at all members"
            )
