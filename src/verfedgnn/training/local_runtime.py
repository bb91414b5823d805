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

import numpy as np
import torch

from verfedgnn.config import Config
from verfedgnn.core.graph import stack_graphs
from verfedgnn.core.pairs import PartyInput
from verfedgnn.protocol.coordinator.coordinator import Closed, Coordinator
from verfedgnn.protocol.party.party import Party
from verfedgnn.protocol.party.policy import LOCAL, Policy
from verfedgnn.protocol.party.stacked_round import replies
from verfedgnn.protocol.round.neighbourhood_exchange import make_projection
from verfedgnn.protocol.round.replica import Replica
from verfedgnn.protocol.round.user_blocks import Part
from verfedgnn.protocol.round.user_subset import Scope
from verfedgnn.protocol.wire.messages import (
    Finish,
    Hello,
    Message,
    RoundReply,
    RoundStart,
    Welcome,
    decode,
    encode,
)
from verfedgnn.runs.ledger import Direction, Ledger

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
        return dict(
            zip(
                messages,
                replies(parties, list(messages.values()), partial(self._scope, tuple(messages))),
                strict=True,
            )
        )

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


def local_federation(
    inputs: Sequence[PartyInput],
    config: Config,
    device: torch.device | str = "cpu",
    *,
    stack: bool = True,
    party: type[Party] = Party,
    policy: Policy = LOCAL,
) -> LocalRuntime:
    """Join a coordinator and one party for each input on this machine; secrets derive from the configured seed."""
    coordinator = Coordinator(config, [data.name for data in inputs], device)
    members = [
        party(data, config, party_secret(config.seed, index), device, policy)
        for index, data in enumerate(inputs)
    ]
    return LocalRuntime(coordinator, members, stack=stack)


def party_secret(seed: int, index: int) -> int:
    """Return the seed of a party's own randomness in a simulation; in a federation a party draws it by itself."""
    return int(np.random.default_rng([seed, 3, index]).integers(2**62))


def _carry(message: Message) -> _Carried:
    data = encode(message)
    return len(data), decode(data)
