"""A federation whose messages are recorded, so that attacks work on what was sent.

    record_federation(parties, config) -> RecordedFederation.round() -> Trip: its RoundStart and RoundReply messages

The coordinator is an ordinary one that also keeps messages. Parties are ordinary ones whose state can be
read, for the truth against which an attack is evaluated; no attack reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.core.random_streams import PartyStream, private_generator, simulated_secret
from verfedgnn.data import PartyData, check_parties
from verfedgnn.privacy.masking import GRADIENT, remove_masks
from verfedgnn.privacy.protections import protection_of
from verfedgnn.protocol.coordinator import Coordinator
from verfedgnn.protocol.forward_backward import PassResult
from verfedgnn.protocol.messages import RoundReply, RoundStart
from verfedgnn.protocol.party import Candidate, Party
from verfedgnn.protocol.solved_round import SolvedStep
from verfedgnn.runs.prepared_data import Prepared, count_data, prepare
from verfedgnn.training.local_runtime import LocalRuntime

TOGETHER = "all"
"""Name of the sender when only the sum over all parties is known."""


@dataclass(frozen=True)
class Trip:
    """One trip: the message to each party and its reply, by name."""

    starts: Mapping[str, RoundStart]
    replies: Mapping[str, RoundReply]


class RecordingCoordinator(Coordinator):
    """A coordinator that follows the protocol and keeps the messages of the last trip."""

    _starts: Mapping[str, RoundStart]
    _replies: dict[str, RoundReply]

    @property
    def done(self) -> bool:
        """Whether the training is over: never, since an attack may need rounds after the last one that was agreed on."""
        return False

    def open(self, among: Sequence[int] | None = None) -> dict[str, Any]:
        """Open a trip as `Coordinator.open` does, and keep its messages."""
        messages = super().open(among)
        self._starts = dict(self.open_parties)
        self._replies = {}
        return messages

    def receive(self, name: str, reply: RoundReply) -> bool:
        """Receive a reply as `Coordinator.receive` does, and keep it."""
        taken = super().receive(name, reply)
        if taken:
            self._replies[name] = reply
        return taken

    @property
    def last(self) -> Trip:
        """The last trip."""
        return Trip(self._starts, self._replies)


@dataclass(frozen=True)
class PartyParameters:
    """The parameters from which a party computed a reply."""

    private: dict[str, Tensor]
    public: Tensor


class ObservableParty(Party):
    """A party whose state can be read; it sends what any party sends."""

    now: PartyParameters
    """Parameters of the last reply."""
    step: SolvedStep
    """What the last round computed, if items are solved at home."""
    drawn: Tensor
    """The numbers that chose what its second model read (E,)."""

    def compute(self, start: RoundStart, *, trains: bool) -> PassResult | SolvedStep:
        """Compute as `Party.compute` does, and keep the parameters and what was solved."""
        private = self.progress.private.parameters
        self.now = PartyParameters(
            {name: value.clone() for name, value in private.items()}, self.replica.parameters.clone()
        )
        home = super().compute(start, trains=trains)
        if isinstance(home, SolvedStep):
            rng = private_generator(self.setup.secret, PartyStream.READ_RATINGS, start.round)
            self.drawn = torch.from_numpy(rng.random(len(self.setup.solved_targets), np.float32))
            self.step = home
        return home

    def read_own_gradient(self, sent: NDArray[Any]) -> NDArray[Any]:
        """Return the party's own protected gradient as it enters the sum; on one machine no masks are drawn."""
        if not self.config.masking:
            return sent
        return remove_masks(sent, [], GRADIENT, self.replica.protection.bits)

    @property
    def neighbours(self) -> Tensor:
        """Which user has which item at this party: (N, M), boolean."""
        graph = self.graph
        table = torch.zeros(graph.users, graph.items, dtype=torch.bool, device=graph.order.device)
        table[graph.edge_users.long(), graph.by_user[1].long()] = True
        return table


@dataclass(frozen=True)
class RecordedFederation:
    """A federation on this machine with a recording coordinator."""

    config: Config
    prepared: list[Prepared]
    parties: list[ObservableParty]
    coordinator: RecordingCoordinator
    runtime: LocalRuntime

    def round(self) -> Trip:
        """Run one round and return its last trip, in which gradients are sent."""
        for party in self.parties:  # more rounds than agreed on
            if self.coordinator.round >= party.replica.rounds:
                party.replica.rounds *= 2
        self.runtime.round()
        return self.coordinator.last

    def sent_gradients(self, trip: Trip) -> dict[str, Tensor]:
        """Return the gradients of user embeddings (N, D) that the coordinator can read: each party's, or
        with masking their sum.

        Ternary ones are signs, or sums of signs.
        """
        arrays = {name: reply.gradient for name, reply in trip.replies.items() if reply.gradient is not None}
        if self.config.masking:
            known = {TOGETHER: protection_of(self.config, len(self.parties)).add_up(list(arrays.values()))}
        else:
            known = {name: np.asarray(values) for name, values in arrays.items()}
        return {
            name: self.of_users(torch.from_numpy(np.array(values, np.float32)))
            for name, values in known.items()
        }

    def sum_of_others(self, trip: Trip, party: int) -> Tensor:
        """Return the sum of all releases but one party's own, flat, as that party knows it."""
        sent = [
            each.read_own_gradient(reply.gradient)
            for p, each in enumerate(self.parties)
            if p != party and (reply := trip.replies.get(each.name)) and reply.gradient is not None
        ]
        if not sent:
            return torch.zeros(self.coordinator.model.size)
        return torch.from_numpy(np.stack(sent)).sum(0)

    def of_users(self, flat: Tensor) -> Tensor:
        """Return the user embeddings' part (N, D) of a flat gradient."""
        return self.coordinator.model.views(flat)["users"]


def record_federation(
    parties: Sequence[PartyData],
    config: Config,
    *,
    parts: Sequence[NDArray[np.int8]] | None = None,
    device: torch.device | str = "cpu",
    start: Tensor | None = None,
) -> RecordedFederation:
    """Join `parties` with the same secrets, and therefore the same messages, as in `train`.

    The training continues from the public parameters `start`, if they are given.
    """
    check_parties(parties)
    config = config.for_data(*count_data(parties), len(parties))
    prepared = prepare(parties, config, torch.device(device), parts)
    candidates = [
        Candidate(
            p.input, config, simulated_secret(config.seed, i), device, party=ObservableParty, start=start
        )
        for i, p in enumerate(prepared)
    ]
    coordinator = RecordingCoordinator(config, [p.party.name for p in prepared], device, start=start)
    runtime = LocalRuntime(coordinator, candidates)
    members = [party for party in runtime.parties.values() if isinstance(party, ObservableParty)]
    return RecordedFederation(config, prepared, members, coordinator, runtime)
