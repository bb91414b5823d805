"""The coordinator's side of the alignment."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verfedgnn.core.errors import DataError, ProtocolError
from verfedgnn.core.user_rule import UserRule, fewest_parties
from verfedgnn.privacy.id_matching import check_set, count_shared, match_users
from verfedgnn.protocol.user_alignment.probes import PROBES
from verfedgnn.protocol.wire.alignment_messages import (
    Aligned,
    AlignHello,
    AlignStart,
    Pseudonyms,
    Sealed,
    UserRows,
)
from verfedgnn.protocol.wire.messages import Message, Waiting


class CoordinatorAlignment:
    """The coordinator's side of the alignment: it relays sealed messages and matches pseudonyms."""

    def __init__(
        self,
        names: Sequence[str],
        method: str,
        agreement: str,
        rule: UserRule = "any",
        *,
        most_users: int = 0,
        least_overlap: float = 0.0,
    ) -> None:
        self.names = list(names)
        self.method = method
        self.agreement = agreement
        self.fewest = fewest_parties(rule, len(names)) if names else 1
        self.most_users = most_users
        self.least_overlap = least_overlap
        """Share of each party's users that some other party must have."""
        self.hellos: dict[str, AlignHello] = {}
        self.session: str | None = None
        self.sets: dict[str, Pseudonyms] = {}
        self.users: dict[str, int] = {}
        """Number of rows, as confirmed by the parties that have theirs."""

    def handle(self, name: str, message: Message) -> list[tuple[str, Message]]:
        """Take one message and return those to be sent, each with its recipient."""
        if isinstance(message, AlignHello):
            return self._hello(name, message)
        handlers: dict[type[Message], Callable[[str, Any], list[tuple[str, Message]]]] = {
            Sealed: self._relay,
            Pseudonyms: self._gather,
            Aligned: self._confirm,
        }
        take = handlers.get(type(message))
        if take is None:
            raise ProtocolError(f"{name}: unexpected {type(message).__name__} while users are aligned")
        if getattr(message, "session", None) != self.session:
            return []  # of an earlier session
        return take(name, message)

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

    def _reset(self) -> None:
        self.session = None
        self.sets = {}
        self.users = {}

    def check_hello(self, name: str, message: AlignHello) -> None:
        """Raise `ProtocolError` if a party has another agreement, or more users than agreed."""
        if message.party != name or message.agreement != self.agreement:
            raise ProtocolError(
                f"{name}: its federation file is not the coordinator's; fetch the current one"
            )
        if self.most_users and message.users - PROBES > self.most_users:
            raise ProtocolError(
                f"{name}: it brings {message.users - PROBES:,} users, but the agreement allows {self.most_users:,}"
            )

    def _hello(self, name: str, message: AlignHello) -> list[tuple[str, Message]]:
        self.check_hello(name, message)
        self.hellos[name] = message
        self._reset()
        if self.missing:
            return [(name, Waiting(missing=self.missing))]
        self.session = secrets.token_hex(16)
        hellos = [self.hellos[name] for name in self.names]
        keys = [hello.seal_key for hello in hellos]
        signatures = [hello.seal_signature for hello in hellos]
        return [
            (name, AlignStart(session=self.session, index=index, seal_keys=keys, seal_signatures=signatures))
            for index, name in enumerate(self.names)
        ]

    def _relay(self, name: str, message: Sealed) -> list[tuple[str, Message]]:
        if not message.peer < len(self.names):
            raise ProtocolError(f"{name}: a sealed message for a party that does not exist")
        return [(self.names[message.peer], message.model_copy(update={"peer": self.names.index(name)}))]

    def _gather(self, name: str, message: Pseudonyms) -> list[tuple[str, Message]]:
        if name in self.sets:
            raise ProtocolError(f"{name}: it sends pseudonyms twice")
        self._check_pseudonyms(name, message)
        self.sets[name] = message
        if len(self.sets) < len(self.names):
            return []
        sets = [self.sets[name] for name in self.names]
        self.sets = {}
        values: list[NDArray[Any]] = [one.values for one in sets]
        self._check_overlap(values)
        rows, users = match_users(values, self.fewest, probes=PROBES)
        return [
            (name, UserRows(session=message.session, users=users, rows=own.astype(np.int32)))
            for name, own in zip(self.names, rows, strict=True)
        ]

    def _check_overlap(self, sets: Sequence[NDArray[Any]]) -> None:
        """Raise `DataError` if the parties share fewer users than agreed."""
        if len(sets) < 2:
            return
        shared = [count - PROBES for count in count_shared(sets)]
        own = [len(one) - PROBES for one in sets]
        if any(common < self.least_overlap * count for common, count in zip(shared, own, strict=True)):
            counts = ", ".join(
                f"{name} shares {common:,} of {count:,}"
                for name, common, count in zip(self.names, shared, own, strict=True)
            )
            raise DataError(
                f"too few common users: {counts}; min_overlap = {self.least_overlap:g}. Check the exports and how user ids are "
                "spelled, or lower min_overlap in federation.toml at all members"
            )

    def _check_pseudonyms(self, name: str, message: Pseudonyms) -> None:
        values: NDArray[Any] = message.values
        try:
            check_set(values)
        except ProtocolError as error:
            raise ProtocolError(f"{name}: {error}") from None
        announced = self.hellos[name].users
        if len(values) != announced:
            raise ProtocolError(f"{name}: it sends {len(values):,} pseudonyms and announced {announced:,}")

    def _confirm(self, name: str, message: Aligned) -> list[tuple[str, Message]]:
        self.users[name] = message.users
        if len(set(self.users.values())) > 1:
            raise ProtocolError(f"{name}: it counts {message.users:,} users, other parties another number")
        if len(self.users) == len(self.names):
            self.hellos = {}
            self.session = None
        return []
