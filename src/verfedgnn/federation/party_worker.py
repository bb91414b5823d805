"""A worker of a party, other than the first: it answers for its own users, as the first worker asks it to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from verfedgnn.core.errors import RunError
from verfedgnn.core.worker_group import WorkerGroup
from verfedgnn.federation.event_log import log_event
from verfedgnn.federation.party_checkpoints import PartyCheckpoints
from verfedgnn.federation.party_policy import make_policy
from verfedgnn.federation.party_store import PartyStore
from verfedgnn.federation.release_file import open_ledger
from verfedgnn.federation.stages import Stage
from verfedgnn.protocol.party.candidate import Candidate
from verfedgnn.protocol.party.party import Party
from verfedgnn.protocol.round.worker_orders import Order, send_arrays, send_message, wait_for_order
from verfedgnn.protocol.wire.messages import Finish, Message, RoundStart, Welcome
from verfedgnn.runs.start_from import read_party_start


def run_worker(store: PartyStore, workers: WorkerGroup, device: str = "cpu") -> None:
    """Obey the first worker until it ends the work. The run folder must be the same for all workers."""
    worker: PartyWorker | None = None
    while True:
        order, values, message = wait_for_order(workers)
        if order is Order.END:
            return
        if order is Order.STAGE:
            stage = next(stage for stage in store.stages if stage.name == values["stage"])
            start_from = None if values["start_from"] is None else Path(values["start_from"])
            worker = PartyWorker(store, stage, workers, device, start_from)
            worker.restore(values["round"])
        elif worker is not None:
            worker.obey(order, values, message)


class PartyWorker:
    """One training of a worker. `start_from` is the folder of an earlier run of the party to continue from."""

    def __init__(
        self,
        store: PartyStore,
        stage: Stage,
        workers: WorkerGroup,
        device: str,
        start_from: Path | None = None,
    ) -> None:
        self.workers = workers
        chosen = torch.device(device)
        prepared, alignment = store.load(chosen)
        folder = store.worker_folder(stage, workers.rank)
        start = None
        if start_from is not None:
            start = read_party_start(start_from, prepared.party, lists=not stage.first)
        self.ledger = open_ledger(folder, stage.config)
        self.candidate = Candidate(
            prepared.input,
            stage.config,
            store.read_secret(stage),
            chosen,
            make_policy(store.identity, stage.config, alignment),
            start=start,
            ledger=self.ledger,
            workers=workers,
        )
        self.checkpoints = PartyCheckpoints(folder, self.candidate.progress, self.ledger, workers.size)
        self.party: Party | None = None
        users = self.candidate.setup.data.users
        log_event("worker ready", stage=stage.name, worker=workers.rank, users=users)

    def restore(self, round: int) -> None:
        """Restore the checkpoint of the round that the first worker restored; 0 for none."""
        if round and self.checkpoints.restore(round) is None:
            raise RunError(
                f"worker {self.workers.rank} has no checkpoint of round {round}; keep the run folder of all workers in one place, "
                "or start a new training with another --out"
            )

    def obey(self, order: Order, values: dict[str, Any], message: Message | None) -> None:
        """Do what the first worker asked for, and answer it."""
        if isinstance(message, Welcome):
            self.party = self.candidate.welcome(message)
            return
        assert self.party is not None, "a worker joins before it works"
        if isinstance(message, RoundStart):
            reply = self.party.answer_round(message)
            self.ledger.flush()
            send_message(self.workers, 0, reply)
        elif isinstance(message, Finish):
            send_arrays(self.workers, 0, self.party.finish_users(message).of_worker)
        elif order is Order.CHECKPOINT:
            self.checkpoints.write(values["round"], {})
            self.workers.wait()
