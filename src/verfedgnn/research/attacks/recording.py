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
from verfedgnn.core.errors import ConfigError
from verfedgnn.core.graph import Graph
from verfedgnn.core.random_streams import simulated_secret
from verfedgnn.data import PartyData, check_parties
from verfedgnn.protocol.coordinator.coordinator import Coordinator
from verfedgnn.protocol.party.candidate import Candidate
from verfedgnn.protocol.party.exchange_state import SentNeighbourhoods
from verfedgnn.protocol.party.party import Party
from verfedgnn.protocol.round.aggregation import sum_gradients
from verfedgnn.protocol.round.forward_backward import PassInputs
from verfedgnn.protocol.round.user_subset import UserSubset
from verfedgnn.protocol.wire.fixed_point import sum_bits, wrap_signed
from verfedgnn.protocol.wire.messages import RoundReply, RoundStart
from verfedgnn.runs.prepared_data import Prepared, prepare
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

    def open(self, among: Sequence[int] | None = None) -> dict[str, RoundStart]:
        """Open a trip as `Coordinator.open` does, and keep its messages."""
        starts = super().open(among)
        self._starts = dict(starts)
        self._replies = {}
        return starts

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
    exchanged: PartyParameters
    """Parameters of the last reply with neighbourhoods."""
    gradient: Tensor
    """Gradient of the public parameters in the last reply, flat, before protection."""

    def begin(self, message: RoundStart) -> PassInputs:
        """Begin a round as `Party.begin` does, and keep the parameters."""
        work = super().begin(message)
        self.now = PartyParameters(
            {name: value.clone() for name, value in work.private.items()}, self.replica.parameters.clone()
        )
        if message.exchange:
            self.exchanged = self.now
        return work

    def protect_gradient(
        self, gradient: Tensor, message: RoundStart, subset: UserSubset
    ) -> NDArray[np.generic]:
        """Protect a gradient as `Party.protect_gradient` does, and keep the original."""
        self.gradient = subset.expand_public(gradient)
        return super().protect_gradient(gradient, message, subset)

    def read_own_gradient(self, sent: NDArray[Any]) -> NDArray[Any]:
        """Return the party's own protected gradient as it enters the sum; on one machine no masks are drawn."""
        if not self.config.masking:
            return sent
        skellam = self.config.gradients.mechanism == "skellam"
        return wrap_signed(sent, 32 if skellam else sum_bits(self.parties))

    @property
    def edges(self) -> Graph:
        """Graph of the party."""
        return self.graph

    @property
    def neighbours(self) -> Tensor:
        """Which user has which item at this party: (N, M), boolean."""
        graph = self.edges
        table = torch.zeros(graph.users, graph.items, dtype=torch.bool, device=graph.order.device)
        table[graph.edge_users.long(), graph.by_user[1].long()] = True
        return table

    def neighbourhood(self, knows: PartyParameters) -> Tensor:
        """Return X_p of the first layer (N, C), before projection, masks and fixed point."""
        views = {name: view.unsqueeze(0) for name, view in self.model.views(knows.public).items()}
        items = knows.private["messages" if self.model.config.form == "messages" else "items"].unsqueeze(0)
        own, _, _ = self.model.operator.layer(0, views, views["users"], items, self.edges, None)
        return own.own[0]

    def atoms(self, knows: PartyParameters) -> Tensor:
        r"""Return the atoms (M, D): for every item, the first-layer row of a user who has only that item.

        .. math::
            x_u = f(|S|) \sum_{v \in S} a_v, \qquad \rho = \textstyle\sum_i M_i / M_p, \qquad
            a_v = e_v / \sqrt{N_v \rho} \text{ (GCN)}, \quad e_v / \rho \text{ (GGNN)}, \quad y_v / \sqrt\rho \text{ (messages)}
        """
        config = self.model.config
        graph = self.edges
        if config.gnn not in ("gcn", "ggnn") or not config.estimators:
            raise ConfigError(
                f"a row of {config.gnn.upper()} is not known to be a plain sum over items, nor is one with exact degrees: "
                "attack GCN or GGNN"
            )
        ratio = graph.ratio[0]
        if config.form == "messages":
            return knows.private["messages"] * ratio.rsqrt()
        if config.gnn == "ggnn":
            return knows.private["items"] / ratio
        return knows.private["items"] * (graph.item_degree[0] * ratio).rsqrt()


@dataclass(frozen=True)
class Exchange:
    """A sum of neighbourhoods as it is handed out, with its parts."""

    start: RoundStart
    """Message with the sum."""
    sent: list[SentNeighbourhoods]
    """Each party's part of the sum, known to that party."""
    knows: list[PartyParameters]
    """Parameters behind each part: the truth, which an insider would know."""


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
                more = {"training.epochs": 2 * party.replica.config.training.epochs}
                party.replica.config = party.replica.config.with_values(more)
        self.runtime.round()
        return self.coordinator.last

    def exchange(self) -> Exchange:
        """Run rounds until a sum of neighbourhoods is handed out, and return it."""
        for _ in range(2 * self.config.exchange.every + 1):
            sent = [party.progress.exchange.sent[0] for party in self.parties if party.progress.exchange.sent]
            knows = [party.exchanged for party in self.parties if party.progress.exchange.sent]
            start = next(iter(self.round().starts.values()))
            made = len(sent) == len(self.parties) and all(
                each.trip == start.neighbourhood_trip for each in sent
            )
            if start.neighbourhoods is not None and made:
                return Exchange(start, sent, knows)
        raise ConfigError(
            "no sum of all parties' neighbourhoods is sent with these settings; set participation = 1 and refresh = 0"
        )

    def sent_gradients(self, trip: Trip) -> dict[str, Tensor]:
        """Return the gradients of user embeddings (N, D) that the coordinator can read: each party's, or
        with masking their sum.

        Ternary ones are signs, or sums of signs.
        """
        arrays = {name: reply.gradient for name, reply in trip.replies.items() if reply.gradient is not None}
        if self.config.masking:
            known = {TOGETHER: sum_gradients(list(arrays.values()), self.config, len(self.parties))}
        else:
            known = {name: np.asarray(values) for name, values in arrays.items()}
        return {
            name: self.of_users(torch.from_numpy(np.array(values, np.float32)))
            for name, values in known.items()
        }

    def of_users(self, flat: Tensor) -> Tensor:
        """Return the user embeddings' part (N, D) of a flat gradient."""
        return self.coordinator.model.views(flat)["users"]

    def counts(self, party: int, round: int) -> Tensor:
        """Return the number of ratings of each user (N,) in a party's batch of a round."""
        batch = self.parties[party].batch(round)
        return torch.bincount(batch.pairs.user.long(), minlength=batch.users)


def record_federation(
    parties: Sequence[PartyData],
    config: Config,
    *,
    parts: Sequence[NDArray[np.int8]] | None = None,
    device: torch.device | str = "cpu",
) -> RecordedFederation:
    """Join `parties` with the same secrets, and therefore the same messages, as in `train`."""
    check_parties(parties)
    prepared = prepare(parties, config, torch.device(device), parts)
    candidates = [
        Candidate(p.input, config, simulated_secret(config.seed, i), device, party=ObservableParty)
        for i, p in enumerate(prepared)
    ]
    coordinator = RecordingCoordinator(config, [p.party.name for p in prepared], device)
    runtime = LocalRuntime(coordinator, candidates)
    members = [party for party in runtime.parties.values() if isinstance(party, ObservableParty)]
    return RecordedFederation(config, prepared, members, coordinator, runtime)
