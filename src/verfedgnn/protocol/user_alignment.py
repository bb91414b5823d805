"""Finding the common users before training, as two state machines around the arithmetic of `privacy.alignment`.

keyed: the first party draws a key and seals it for each other party; all send pseudonyms of their users under it to the
coordinator, which does not have the key, intersects them, and tells everybody which of its own rows are common.

ecdh: party k learns which of its users are among those that parties 0 .. k-1 have in common, by private set intersection with
party k-1; the last one seals the result for the others. The coordinator relays what it cannot read.

Either way a row's place is the order of its pseudonym under a key of this alignment: the same everywhere, and random.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from verfedgnn.core.errors import DataError, ProtocolError
from verfedgnn.privacy.id_matching import (
    WIDTH,
    Each,
    PsiClient,
    PsiServer,
    Sealer,
    common,
    order_of_rows,
    pseudonyms,
)
from verfedgnn.privacy.identifiers import unambiguous
from verfedgnn.protocol.party.policy import Vouching
from verfedgnn.protocol.wire.alignment_messages import (
    Aligned,
    AlignHello,
    AlignStart,
    Common,
    Pseudonyms,
    Sealed,
)
from verfedgnn.protocol.wire.messages import Message, Waiting

Method = Literal["keyed", "ecdh"]
BUCKETS = 16
"""Parts into which an intersection is cut; as many processor cores can share in it."""
REVEALS = {
    "keyed": (
        "The coordinator learns how many users each party has and how many any of them share, under pseudonyms; it could look a "
        "user up only together with a party, which knows the key. Parties learn the common users and nothing else."
    ),
    "ecdh": (
        "The coordinator learns how many users each party has, nothing more. Party k also learns which of its users parties 1 "
        "to k - 1 have in common, and how many users its two neighbours in the roster compare; all learn the common users."
    ),
    "none": "Nothing is exchanged: every party's file must list the same users. A hash of the whole list is compared.",
}
"""What each way of aligning shows to whom."""

_KEY, _SET, _ASK, _ANSWER = b"key", b"set", b"ask", b"answer"


class Guest:
    """A party's side. `ids` are its users as its table spells them; `rows`, in the end, the common ones in everybody's order."""

    def __init__(
        self,
        name: str,
        ids: NDArray[np.str_],
        method: Method,
        agreement: str,
        vouching: Vouching,
        each: Each = map,
    ) -> None:
        self.name, self.method, self.agreement, self.vouching, self.each = (
            name,
            method,
            agreement,
            vouching,
            each,
        )
        self.ids, self._rows = unambiguous(ids)
        self.ambiguous = len(ids) - len(self.ids)
        """Users left out because they have no id, or one that another user has too once spelling is evened out."""
        self.session: str | None = None
        self.rows: NDArray[np.int64] | None = None

    def hello(self) -> AlignHello:
        """The first message, and again whenever the connection was lost."""
        self._sealer = Sealer()
        signature = self.vouching.sign("seal", self._sealer.public)
        return AlignHello(
            party=self.name, agreement=self.agreement, seal_key=self._sealer.public, seal_signature=signature
        )

    def handle(self, message: Message) -> list[Message]:
        """One message in, any number out."""
        if isinstance(message, AlignStart):
            return self._start(message)
        if (
            not isinstance(message, Sealed | Common)
            or message.session != self.session
            or self.rows is not None
        ):
            return []  # of a session that was given up
        if isinstance(message, Common):
            return self._take_common(message)
        if not message.peer < len(self._keys):
            raise ProtocolError("a sealed message from a party that does not exist")
        for kind, take in (
            (_KEY, self._take_key),
            (_ASK, self._take_ask),
            (_ANSWER, self._take_answer),
            (_SET, self._take_set),
        ):
            if message.data[: len(kind) + 1].tobytes() == kind + b":":
                sealed = message.data[len(kind) + 1 :].tobytes()
                context = kind + bytes.fromhex(message.session)
                return take(message.peer, self._sealer.open(self._keys[message.peer], context, sealed))
        raise ProtocolError("a sealed message of an unknown kind")

    def _start(self, message: AlignStart) -> list[Message]:
        keys, signatures = message.seal_keys, message.seal_signatures
        if len(keys) != len(signatures) or not message.index < len(keys):
            raise ProtocolError("the coordinator starts an alignment with keys that are not the parties' own")
        if keys[message.index] != self._sealer.public:
            return []  # answers a hello that another one has followed
        for party, (key, signature) in enumerate(zip(keys, signatures, strict=True)):
            self.vouching.check("seal", party, key, signature)
        self.session, self.index, self._keys, self.rows = message.session, message.index, keys, None
        self._client: PsiClient | None = None
        self._asked: bytes | None = None
        self._prefix: NDArray[np.bool_] | None = None
        if self.method == "keyed":
            if self.index:
                return []
            drawn = secrets.token_bytes(32)
            return [*(self._seal(peer, _KEY, drawn) for peer in range(1, len(keys))), self._pseudonyms(drawn)]
        if not self.index:
            self._prefix = np.ones(len(self.ids), bool)
            return self._settled()
        self._client = PsiClient(self.ids, BUCKETS, self.each)
        return [self._seal(self.index - 1, _ASK, _joined(self._client.request()))]

    # -- keyed ---------------------------------------------------------------------------------------------------------------

    def _take_key(self, peer: int, key: bytes) -> list[Message]:
        if peer or self.method != "keyed" or len(key) != 32:
            raise ProtocolError("a key for pseudonyms from a party that does not draw it")
        return [self._pseudonyms(key)]

    def _pseudonyms(self, key: bytes) -> Message:
        values = pseudonyms(self.ids, key)
        self._order = order_of_rows(values)
        assert self.session is not None
        return Pseudonyms(session=self.session, values=values[self._order])

    def _take_common(self, message: Common) -> list[Message]:
        members = (
            np.unpackbits(message.members.view(np.uint8), count=len(self.ids))
            if len(self.ids)
            else np.zeros(0, np.uint8)
        )
        chosen = self._order[members.astype(bool)]
        if len(chosen) != message.count or len(message.members) != (len(self.ids) + 7) // 8:
            raise ProtocolError("the coordinator's list of common users does not fit this party's")
        return self._done(chosen)

    # -- ecdh ----------------------------------------------------------------------------------------------------------------

    def _take_ask(self, peer: int, data: bytes) -> list[Message]:
        if self.method != "ecdh" or peer != self.index + 1:
            raise ProtocolError("a request for an intersection from a party that is not the next one")
        self._asked = data
        return self._settled()

    def _take_answer(self, peer: int, data: bytes) -> list[Message]:
        if self._client is None or peer != self.index - 1:
            raise ProtocolError("an intersection from a party that was not asked")
        parts = _parted(data)
        self._prefix = self._client.intersection(parts[: len(parts) // 2], parts[len(parts) // 2 :])
        self._client = None
        return self._settled()

    def _settled(self) -> list[Message]:
        """Answer the next party once one's own intersection is known; the last party tells everybody."""
        if self._prefix is None:
            return []
        members = np.flatnonzero(self._prefix)
        if self.index == len(self._keys) - 1:
            key = secrets.token_bytes(32)
            values = pseudonyms(self.ids[members], key)
            order = order_of_rows(values)
            sent = key + values[order].tobytes()
            return [
                *(self._seal(peer, _SET, sent) for peer in range(self.index)),
                *self._done(members[order]),
            ]
        if self._asked is None:
            return []
        setups, responses = PsiServer(self.ids[members], BUCKETS, self.each).answer(_parted(self._asked))
        self._asked = None
        return [self._seal(self.index + 1, _ANSWER, _joined([*setups, *responses]))]

    def _take_set(self, peer: int, data: bytes) -> list[Message]:
        if self.method != "ecdh" or peer != len(self._keys) - 1 or len(data) % WIDTH or len(data) < 32:
            raise ProtocolError("a list of common users from a party that does not know them")
        final = np.frombuffer(data[32:], np.uint8).reshape(-1, WIDTH)
        values = pseudonyms(self.ids, data[:32])
        order = order_of_rows(values)
        mine, _ = common([values[order], final])
        chosen = order[mine]
        if len(chosen) != len(final):
            raise ProtocolError("the list of common users holds some that are not this party's")
        return self._done(chosen)

    # -- both ----------------------------------------------------------------------------------------------------------------

    def _done(self, chosen: NDArray[np.int64]) -> list[Message]:
        if not len(chosen):
            raise DataError("no user is at every party: check that all write user ids in the same way")
        assert self.session is not None
        self.rows = self._rows[chosen]
        return [Aligned(session=self.session, users=len(chosen))]

    def _seal(self, peer: int, kind: bytes, data: bytes) -> Message:
        assert self.session is not None
        sealed = self._sealer.seal(self._keys[peer], kind + bytes.fromhex(self.session), data)
        return Sealed(session=self.session, peer=peer, data=np.frombuffer(kind + b":" + sealed, np.uint8))


class Host:
    """The coordinator's side: it relays, and intersects pseudonyms."""

    def __init__(self, names: Sequence[str], method: Method, agreement: str) -> None:
        self.names, self.method, self.agreement = list(names), method, agreement
        self.hellos: dict[str, AlignHello] = {}
        self.session: str | None = None
        self.sets: dict[str, NDArray[np.uint8]] = {}
        self.users: dict[str, int] = {}
        """Number of common users, from those who have them."""

    def handle(self, name: str, message: Message) -> list[tuple[str, Message]]:
        """One message in, any number out, each with its recipient."""
        if isinstance(message, AlignHello):
            return self._hello(name, message)
        handlers: dict[type[Message], Callable[[str, Message], list[tuple[str, Message]]]] = {
            Sealed: self._relay,
            Pseudonyms: self._gather,
            Aligned: self._aligned,
        }
        take = handlers.get(type(message))
        if take is None:
            raise ProtocolError(f"{name}: a {type(message).__name__} makes no sense here")
        if getattr(message, "session", None) != self.session:
            return []  # of a session that was given up
        return take(name, message)

    def left(self, name: str) -> None:
        """A party is gone; without it nothing can be aligned."""
        if self.hellos.pop(name, None) is not None and name not in self.users:
            self.session, self.sets, self.users = None, {}, {}

    def must_align(self, name: str) -> bool:
        """Whether an alignment is under way that this party does not have the result of."""
        return bool(self.hellos) and name not in self.users

    @property
    def missing(self) -> list[str]:
        """Who is not ready."""
        return [name for name in self.names if name not in self.hellos]

    def _hello(self, name: str, message: AlignHello) -> list[tuple[str, Message]]:
        if message.party != name or message.agreement != self.agreement:
            raise ProtocolError(
                f"{name}: its federation file is not the coordinator's; fetch the current one"
            )
        self.hellos[name] = message
        self.session, self.sets, self.users = (
            None,
            {},
            {},
        )  # whatever was aligned before was so without this party
        if self.missing:
            return [(name, Waiting(missing=self.missing))]
        self.session = secrets.token_hex(16)
        hellos = [self.hellos[name] for name in self.names]
        keys, signatures = [h.seal_key for h in hellos], [h.seal_signature for h in hellos]
        return [
            (name, AlignStart(session=self.session, index=index, seal_keys=keys, seal_signatures=signatures))
            for index, name in enumerate(self.names)
        ]

    def _relay(self, name: str, message: Message) -> list[tuple[str, Message]]:
        assert isinstance(message, Sealed)
        if not message.peer < len(self.names):
            raise ProtocolError(f"{name}: a sealed message for a party that does not exist")
        return [(self.names[message.peer], message.model_copy(update={"peer": self.names.index(name)}))]

    def _gather(self, name: str, message: Message) -> list[tuple[str, Message]]:
        assert isinstance(message, Pseudonyms)
        if self.method != "keyed" or name in self.sets:
            raise ProtocolError(f"{name}: no pseudonyms are due from this party")
        values: NDArray[Any] = message.values
        common([values])  # refuses what is not a sorted set
        self.sets[name] = values
        if len(self.sets) < len(self.names):
            return []
        members, session = common([self.sets[name] for name in self.names]), message.session
        self.sets = {}
        return [
            (name, Common(session=session, count=int(held.sum()), members=np.packbits(held)))
            for name, held in zip(self.names, members, strict=True)
        ]

    def _aligned(self, name: str, message: Message) -> list[tuple[str, Message]]:
        assert isinstance(message, Aligned)
        self.users[name] = message.users
        if len(set(self.users.values())) > 1:
            raise ProtocolError(f"{name}: it counts {message.users:,} common users, others another number")
        if len(self.users) == len(self.names):
            self.hellos, self.session = {}, None
        return []


def _joined(parts: Sequence[bytes]) -> bytes:
    return b"".join(struct.pack("<Q", len(part)) + part for part in parts)


def _parted(data: bytes) -> list[bytes]:
    parts: list[bytes] = []
    start = 0
    while start < len(data):
        if start + 8 > len(data):
            raise ProtocolError("an intersection's message is cut short")
        (size,) = struct.unpack_from("<Q", data, start)
        if start + 8 + size > len(data) or len(parts) >= 2 * BUCKETS:
            raise ProtocolError("an intersection's message does not hold what it announces")
        parts.append(data[start + 8 : start + 8 + size])
        start += 8 + size
    return parts
