"""A federation on one thread whose every step is drawn at random: deliveries, kills, delays and restarts.

The coordinator is the real one with its checkpoints (`CoordinatorStage`), and the parties are the real ones with their masks. The
simulation keeps everything that the coordinator ever received, and what every party hid under its masks, to compare the two.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import verfedgnn as vf
from hub import agree
from verfedgnn.federation.agreement import list_stages
from verfedgnn.federation.coordinator_stage import CoordinatorStage
from verfedgnn.privacy.masking import GRADIENT, share_threshold
from verfedgnn.protocol.coordinator import Coordinator
from verfedgnn.protocol.masks import ListCommitments
from verfedgnn.protocol.messages import (
    Finish,
    Message,
    RoundReply,
    Survivors,
    Unmask,
    Waiting,
    Welcome,
    decode,
    encode,
)
from verfedgnn.protocol.party import Candidate, Party
from verfedgnn.protocol.party_state import Policy
from verfedgnn.runs.ledger import Ledger
from verfedgnn.runs.prepared_data import prepare

Place = tuple[int, int]


class Publisher:
    """A status page and a transcript that nobody reads."""

    seconds_per_round = None

    def __init__(self) -> None:
        self.ledgers: defaultdict[str, Ledger] = defaultdict(Ledger)

    def close_round(self) -> None:
        """Do nothing."""

    def sign(self) -> None:
        """Do nothing."""


class Member:
    """A party: its process, which can be killed, and its disk, which survives."""

    def __init__(self, simulation: Simulation, index: int, data: Any) -> None:
        self.simulation = simulation
        self.index = index
        self.data = data
        self.name = data.name
        self.commitments = ListCommitments()
        self.saved: tuple[Any, Any] | None = None
        self.inbox: deque[bytes] = deque()
        self.result: torch.Tensor | None = None
        self.start()

    def start(self) -> None:
        """Start the process from what is on disk, and say hello."""
        simulation = self.simulation
        agreement = simulation.agreement
        policy = Policy(
            agreement.digest(),
            "rows",
            simulation.identities[self.name],
            smallest=agreement.quorum,
            place=(self.index, len(agreement.parties)),
            fresh_noise=True,
        )
        self.candidate = Candidate(
            self.data,
            simulation.config,
            bytes([self.index]) * 32,
            "cpu",
            policy,
            commitments=self.commitments,
        )
        if self.saved is not None:
            self.candidate.progress.restore(*self.saved)
        self.party: Party | None = None
        self.inbox.clear()
        simulation.receive(self.name, encode(self.candidate.hello()))

    def take(self) -> None:
        """Handle the next message."""
        message = decode(self.inbox.popleft())
        if isinstance(message, Welcome):
            if message.stay == self.candidate.stay:
                self.party = self.candidate.welcome(message)
                self._watch(self.party)
            return
        if self.party is None or isinstance(message, Waiting):
            return
        if isinstance(message, Finish):
            finished = self.party.finish(message)
            self.result = finished.public
            self._send(finished.reply)
            return
        attempt = self.party.masks._secrets
        answer = self.party.handle(message)
        if isinstance(message, Survivors) and isinstance(answer, Unmask):
            assert attempt is not None
            about = (self.simulation.life, attempt.place, attempt.request)
            self.simulation.reveals.append((about, attempt.active, message.survivors))
        if isinstance(answer, RoundReply):
            progress = self.candidate.progress
            self.saved = (progress.checkpoint(), progress.models())
        if answer is not None:
            self._send(answer)

    def _send(self, message: Message) -> None:
        if self.simulation.dies_instead_of_sending():
            self.simulation.kill(self)
        elif self.party is not None:
            self.simulation.receive(self.name, encode(message))

    def _watch(self, party: Party) -> None:
        """Note what the party hides under its masks."""
        original = party.masks.hide

        def hide(values: NDArray[Any], message: Any, context: bytes, use: int, bits: int) -> NDArray[Any]:
            self.simulation.hidden[message.place, use][self.index] = values.copy()
            return original(values, message, context, use, bits)

        party.masks.hide = hide  # type: ignore[method-assign]


class Simulation:
    """One training. `faults` is the chance of a fault at each step."""

    def __init__(
        self,
        folder: Path,
        *,
        parties: int,
        quorum: int,
        rounds: int,
        seed: int,
        faults: float,
        **settings: Any,
    ) -> None:
        self.folder = folder
        self.faults = faults
        self.random = random.Random(seed)
        table = vf.data.synthetic_ratings(users=24, items=8 * parties, ratings=60 * parties, seed=seed)
        data = vf.split_items(table, parties=parties, seed=seed)
        values = {
            "batch": 0,
            "epochs": rounds,
            "evaluate_every": 7,
            "dim": 3,
            "masking": True,
            "exchange": "off",
        }
        self.config = vf.Config.preset("paper", **(values | settings))
        names = [party.name for party in data]
        folder.mkdir(parents=True, exist_ok=True)
        self.agreement, self.identities = agree(
            folder, names, self.config, alignment="none", min_parties=quorum
        )
        self.publisher: Any = Publisher()
        self.transcript: Any = self.publisher
        self.offences: Counter[str] = Counter()
        self.revoked: set[str] = set()
        self.counts: Counter[str] = Counter()
        self.hidden: defaultdict[tuple[Place, int], dict[int, NDArray[Any]]] = defaultdict(dict)
        self.reveals: list[tuple[tuple[int, Place, str], list[int], list[int]]] = []
        """Every Unmask: the process of the coordinator, the attempt and its request, the active parties and the survivors."""
        self.life = 0
        self.dead: set[str] = set()
        self.members: dict[str, Member] = {}
        self._restart_coordinator()
        inputs = [prepared.input for prepared in prepare(data, self.config, torch.device("cpu"))]
        for index, each in enumerate(inputs):
            self.members[each.name] = Member(self, index, each)

    # -- what a training needs from its service ----------------------------------------------------------

    def send(self, name: str, message: Message) -> None:
        """Put a message into a party's inbox."""
        if name in self.members and name not in self.dead:
            self.members[name].inbox.append(encode(message))

    def send_all(self, messages: Sequence[tuple[str, Message]]) -> None:
        """Put messages into the inboxes of parties."""
        for name, message in messages:
            self.send(name, message)

    def status(self) -> dict[str, Any]:
        """Return no status."""
        return {}

    # -- events ------------------------------------------------------------------------------------------

    def receive(self, name: str, data: bytes) -> None:
        """Hand a party's message to the coordinator, which keeps it."""
        message = decode(data)
        kind = type(message).__name__
        if kind == "Hello":
            self.stage.take_hello(name, message)  # type: ignore[arg-type]
        elif kind == "Finished":
            self.stage.take_finished(name, message)  # type: ignore[arg-type]
        elif name in self.stage.greeted:
            self.coordinator.take(name, message)

    @property
    def coordinator(self) -> Coordinator:
        """The coordinator of the present process."""
        return self.stage.coordinator

    def _restart_coordinator(self) -> None:
        self.life += 1
        (stage,) = list_stages(self.agreement)
        self.stage = CoordinatorStage(stage, self, self.folder / "run", device="cpu")
        self.stages = [self.stage]
        for name, member in self.members.items():
            if name not in self.dead:
                member.inbox.clear()
                member.party = None
                self.receive(name, encode(member.candidate.hello()))

    def kill(self, member: Member) -> None:
        """Kill a party's process."""
        self.counts["kills"] += 1
        self.dead.add(member.name)
        member.party = None
        member.inbox.clear()
        self.stage.lose(member.name)

    def dies_instead_of_sending(self) -> bool:
        """Draw whether a party is killed at this point."""
        return self.random.random() < self.faults / 3

    def _fault(self) -> None:
        """Let something go wrong, or come back."""
        alive = [name for name in self.members if name not in self.dead]
        choice = self.random.randrange(5)
        if choice == 0 and self.random.random() < 0.3:
            self.counts["coordinator kills"] += 1
            self._restart_coordinator()
        elif choice == 1 and len(alive) > 1:
            self.kill(self.members[self.random.choice(alive)])
        elif choice == 2 and self.coordinator.open_parties and self.coordinator.due:
            self.counts["delays"] += 1
            self.coordinator.lose(self.random.choice(self.coordinator.due), slow=True)
        elif self.dead:
            name = self.random.choice(sorted(self.dead))
            self.dead.discard(name)
            self.members[name].start()

    def step(self) -> None:
        """Deliver one message or let one fault happen, and let the coordinator act."""
        waiting = [m for n, m in self.members.items() if m.inbox and n not in self.dead]
        quiet = self.coordinator.done
        if not quiet and self.random.random() < self.faults:
            self._fault()
        elif waiting:
            self.random.choice(waiting).take()
        elif self.dead:
            name = self.random.choice(sorted(self.dead))
            self.dead.discard(name)
            self.members[name].start()
        elif self.coordinator.members.slow:
            # Its answer was lost with the coordinator that asked; in a federation it would join again after silence.
            name = sorted(self.coordinator.members.slow)[0]
            self.kill(self.members[name])
        while self._coordinate():
            pass

    def _coordinate(self) -> bool:
        coordinator = self.coordinator
        place = coordinator.round, coordinator.attempt
        masks = coordinator.masks
        survivors = [] if masks is None else list(masks.survivors)
        more = self.stage.step()
        log = list(coordinator.updates)[-1:] if coordinator.began else []
        if survivors and coordinator.masks is None and log and log[0].round == place[0] and log[0].parties:
            assert log[0].parties == survivors
            hidden = self.hidden[place, GRADIENT]
            expected = sum(hidden[index].astype(np.int64) for index in survivors)
            np.testing.assert_array_equal(log[0].total, expected)
        return more

    def run(self, most_steps: int = 10**7) -> None:
        """Run until every party has the result."""
        for _ in range(most_steps):
            if self.stage.finishing and all(member.result is not None for member in self.members.values()):
                return
            self.step()
        raise AssertionError(f"not finished in round {self.coordinator.round}")

    # -- what the coordinator could compute --------------------------------------------------------------

    def check(self) -> None:
        """Assert that replicas are equal, and that only one sum an attempt is computable from all that the coordinator received."""
        results = [member.result for member in self.members.values()]
        assert all(torch.equal(results[0], other) for other in results)  # type: ignore[arg-type]
        self.check_secrets()

    def check_secrets(self) -> None:
        """Assert that at most one list an attempt can be unmasked, and never both seeds of a party."""
        own: Counter[tuple[Any, int]] = Counter()
        key: Counter[tuple[Any, int]] = Counter()
        needed: dict[Any, int] = {}
        holders: Counter[tuple[Any, tuple[int, ...]]] = Counter()
        for attempt, active, survivors in self.reveals:
            needed[attempt] = share_threshold(len(active))
            holders[attempt, tuple(survivors)] += 1
            for party in active:
                (own if party in survivors else key)[attempt, party] += 1
        for attempt, party in own:
            assert min(own[attempt, party], key[attempt, party]) < needed[attempt], "both seeds of a party"
        unmasked: defaultdict[int, set[tuple[int, ...]]] = defaultdict(set)
        for (attempt, survivors), count in holders.items():
            if count >= needed[attempt]:
                unmasked[attempt[1][0]].add(survivors)
        assert all(len(found) == 1 for found in unmasked.values()), "two sums of one round"
        self.counts["sums"] = len(unmasked)
