"""A whole federation in this process: a coordinator and all parties, joined and ready for rounds.

Messages are encoded, counted and decoded as if they travelled. Only public things are shared: one replica of the public parameters
and one projection serve all parties. Parties are computed one by one, with the same bits as in separate processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.core.pairs import PartyInput
from verfedgnn.core.random_streams import simulated_secret
from verfedgnn.protocol.coordinator import ClosedRound, Coordinator
from verfedgnn.protocol.messages import Message, decode, encode
from verfedgnn.protocol.party import Candidate, FinishedTraining, Party
from verfedgnn.protocol.party_state import LOCAL, Policy
from verfedgnn.protocol.replica import Replica
from verfedgnn.runs.ledger import Direction, Ledger

M = TypeVar("M", bound=Message)


class LocalRuntime:
    """A coordinator and its parties, joined and ready for rounds."""

    def __init__(self, coordinator: Coordinator, candidates: Sequence[Candidate]) -> None:
        self.coordinator = coordinator
        self.candidates = {candidate.name: candidate for candidate in candidates}
        self.ledger = Ledger()
        self._carried: dict[Direction, tuple[Message, int, Message]] = {}
        """The last message in each direction, its encoded bytes, and what was decoded from them."""
        self.parties: dict[str, Party] = {}
        for name, candidate in self.candidates.items():
            coordinator.hello(self.carry("up", name, candidate.hello()))
        replica: Replica | None = None
        for name, candidate in self.candidates.items():
            welcome = self.carry("down", name, coordinator.welcome(name))
            self.parties[name] = candidate.welcome(welcome, replica)
            replica = self.parties[name].replica

    def round(self) -> ClosedRound:
        """Run one round: carry the coordinator's messages to the parties, and their answers back, until it can be closed."""
        messages: list[tuple[str, Any]] | None = list(self.coordinator.open().items())
        while messages is not None:
            for name, message in messages:
                answer = self.parties[name].handle(self.carry("down", name, message))
                if answer is not None:
                    self.coordinator.take(name, self.carry("up", name, answer))
            messages = self.coordinator.proceed()
        return self.coordinator.close()

    def finish(self) -> list[FinishedTraining]:
        """End the training and return every party's result, in order."""
        results = []
        for name, message in self.coordinator.finish().items():
            result = self.parties[name].finish(self.carry("down", name, message))
            self.carry("up", name, result.reply)
            results.append(result)
        return results

    def carry(self, direction: Direction, name: str, message: M) -> M:
        """Carry a message; one to many parties is encoded and decoded once, and counted for each."""
        if direction not in self._carried or self._carried[direction][0] is not message:
            data = encode(message)
            self._carried[direction] = message, len(data), decode(data)
        _, size, received = self._carried[direction]
        self.ledger.record(type(message).__name__, direction, name, size)
        return cast(M, received)


def local_federation(
    inputs: Sequence[PartyInput],
    config: Config,
    device: torch.device | str = "cpu",
    *,
    party: type[Party] = Party,
    policy: Policy = LOCAL,
    start: Tensor | None = None,
) -> LocalRuntime:
    """Join a coordinator and one party for each input on this machine; secrets derive from the configured seed.

    The training continues from the public parameters `start`, if they are given.
    """
    ratings = sum(len(data.train) for data in inputs)
    config = config.for_data(inputs[0].users, ratings, len(inputs))
    names = [data.name for data in inputs]
    coordinator = Coordinator(config, names, device, masked=policy.masks, start=start)
    candidates = [
        Candidate(data, config, simulated_secret(config.seed, index), device, policy, party, start=start)
        for index, data in enumerate(inputs)
    ]
    return LocalRuntime(coordinator, candidates)
