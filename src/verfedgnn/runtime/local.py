"""All parties in this process. Messages are encoded and counted as if they travelled; shared work is done once.

What is shared is public: one replica of the public parameters and one projection serve all parties. Active parties are
stacked, so that a round is a few large products, as long as that fits; `stack=False` runs them one by one, exactly as separate
processes would.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from verfedgnn.graph import stack_graphs
from verfedgnn.protocol.coordinator import Closed, Coordinator
from verfedgnn.protocol.exchange import make_projection
from verfedgnn.protocol.ledger import Direction, Ledger
from verfedgnn.protocol.messages import Finish, Hello, Message, RoundReply, RoundStart, Welcome, decode, encode
from verfedgnn.protocol.party import Party
from verfedgnn.protocol.replica import Replica
from verfedgnn.protocol.rotation import Part
from verfedgnn.protocol.scope import Scope
from verfedgnn.protocol.together import replies

STACK_VALUES = 1 << 24
"""Parties are stacked up to so many values of everybody's user embeddings (64 MiB, of which a round holds some twenty); larger
products are no faster."""

SIDE_BY_SIDE = 1 << 22
"""Public parameters from which on messages are packed by several threads: small ones would wait for each other."""

_Carried = tuple[int, Message]
"""How many bytes a message was, and what came out of them."""


class LocalRuntime:
    """A coordinator and its parties, joined and ready for rounds."""

    def __init__(self, coordinator: Coordinator, parties: Sequence[Party], *, stack: bool = True) -> None:
        self.coordinator, self.ledger = coordinator, Ledger()
        self.parties = {party.data.name: party for party in parties}
        self.stack = stack and sum(party.model.user_size for party in parties) <= STACK_VALUES
        self.large = any(party.model.size >= SIDE_BY_SIDE for party in parties)
        self._stacked: tuple[tuple[str, ...], dict[int, Scope]] = ((), {})
        self._join()

    def _join(self) -> None:
        for name, party in self.parties.items():
            hello = self._up({name: party.hello()})[name]
            assert isinstance(hello, Hello)
            self.coordinator.hello(hello)
        first = next(iter(self.parties.values()))
        projection = make_projection(first.config, first.data.users, first.device)
        replica: Replica | None = None
        for name, party in self.parties.items():
            (welcome,) = self._down({name: self.coordinator.welcome(name)}).values()
            assert isinstance(welcome, Welcome)
            party.welcome(welcome, replica, projection)
            replica = party.replica

    def round(self) -> Closed:
        """One round with all its trips."""
        while True:
            starts = self._down(self.coordinator.open())
            for name, received in self._up(self._replies(starts)).items():
                assert isinstance(received, RoundReply)
                self.coordinator.receive(name, received)
            closed = self.coordinator.close()
            if self.coordinator.trip == 0:
                return closed

    def finish(self) -> None:
        """Tell the parties that training is over."""
        for name, message in self._down(dict.fromkeys(self.parties, self.coordinator.finish())).items():
            assert isinstance(message, Finish)
            self._up({name: self.parties[name].finish(message)})

    def _replies(self, starts: dict[str, Message]) -> dict[str, RoundReply]:
        messages = {name: start for name, start in starts.items() if isinstance(start, RoundStart)}
        if not self.stack:
            answers = {name: self.parties[name].handle(start) for name, start in messages.items()}
            return {name: answer for name, answer in answers.items() if isinstance(answer, RoundReply)}
        parties = [self.parties[name] for name in messages]
        return dict(zip(messages, replies(parties, list(messages.values()), partial(self._scope, tuple(messages))), strict=True))

    def _scope(self, names: tuple[str, ...], part: Part, rated: bool) -> Scope:
        """That of a stack has all users of the part: hardly anybody is without ratings at all parties."""
        if len(names) == 1:
            return self.parties[names[0]].scope(part, rated)
        if self._stacked[0] != names:
            self._stacked = (names, {})
        known = self._stacked[1]
        if part.index not in known:
            scopes = [self.parties[name].scope(part, False) for name in names]
            known[part.index] = replace(scopes[0], graph=stack_graphs([scope.graph for scope in scopes]))
        return known[part.index]

    def _down(self, messages: Mapping[str, Message]) -> dict[str, Message]:
        """Coordinator to parties; a message that goes to many is encoded and decoded once and counted for each."""
        different = {id(message): message for message in messages.values()}
        sent = dict(zip(different, self._carried(list(different.values())), strict=True))
        return self._counted("down", messages, [sent[id(message)] for message in messages.values()])

    def _up(self, messages: Mapping[str, Message]) -> dict[str, Message]:
        return self._counted("up", messages, self._carried(list(messages.values())))

    def _counted(
        self, way: Direction, messages: Mapping[str, Message], carried: Sequence[tuple[int, Message]]
    ) -> dict[str, Message]:
        received = {}
        for name, (size, message) in zip(messages, carried, strict=True):
            self.ledger.record(type(message).__name__, way, name, size)
            received[name] = message
        return received

    def _carried(self, messages: Sequence[Message]) -> list[_Carried]:
        """Messages to bytes and back, side by side where they are large."""
        if not self.large or len(messages) < 2:
            return [_carry(message) for message in messages]
        with ThreadPoolExecutor(min(len(messages), os.cpu_count() or 1)) as threads:
            return list(threads.map(_carry, messages))


def _carry(message: Message) -> _Carried:
    data = encode(message)
    return len(data), decode(data)
