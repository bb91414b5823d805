"""The worker processes that share the users of a party or a coordinator, and what they send each other (torch.distributed, gloo).

Workers belong to one member and trust each other. Their connections are neither encrypted nor authenticated, so they need a network
of their own; on one machine they use the loopback interface.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.core.errors import RunError

PATIENCE = timedelta(days=30)
"""How long a worker waits for another one. A worker that ended is noticed at once; this is the time that a federation may rest."""


class WorkerGroup:
    """All workers of a member, seen from one of them. The first worker talks to the other members."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._sending: list[tuple[dist.Work, Tensor]] = []
        """What is on its way, with the memory that it is sent from."""

    @classmethod
    def connect(cls, rank: int, size: int, meeting: Path | None = None) -> WorkerGroup:
        """Connect with the other workers.

        They meet through the file `meeting` on one machine, else as the environment says (torchrun sets it).
        """
        method = "env://" if meeting is None else meeting.absolute().as_uri()
        dist.init_process_group("gloo", init_method=method, rank=rank, world_size=size, timeout=PATIENCE)
        return cls(rank, size)

    def close(self) -> None:
        """End the connections."""
        dist.destroy_process_group()

    @property
    def is_first(self) -> bool:
        """Whether this is the worker that talks to the other members."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of all workers' `values`, the same bits at every worker."""
        total = values.contiguous().clone()
        _check(lambda: dist.all_reduce(total))
        return total

    def wait(self) -> None:
        """Wait until all workers are here."""
        _check(dist.barrier)

    def gather(self, data: bytes) -> list[bytes]:
        """Return the data of all workers, at every worker, in their order."""
        sizes = torch.zeros(self.size, dtype=torch.int64)
        sizes[self.rank] = len(data)
        found = []
        for rank, size in enumerate(self.sum(sizes).tolist()):
            part = torch.empty(size, dtype=torch.uint8)
            if rank == self.rank:
                part.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8) if size else part)
            if size:
                _check(partial(dist.broadcast, part, rank))
            found.append(part.numpy().tobytes())
        return found

    def send(self, rank: int, arrays: Sequence[NDArray[Any]]) -> None:
        """Begin to send arrays to a worker, which knows their shapes and types; `finish_sending` waits for the end."""
        for array in arrays:
            if array.size:
                flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
                values = torch.from_numpy(flat if flat.flags.writeable else flat.copy())
                self._sending.append((_check(partial(dist.isend, values, rank)), values))

    def finish_sending(self) -> None:
        """Wait until everything is sent."""
        for work, _ in self._sending:
            _check(work.wait)
        self._sending.clear()

    def receive(self, rank: int, shape: Sequence[int], dtype: str) -> NDArray[Any]:
        """Receive one array from a worker."""
        found = np.empty(tuple(shape), dtype)
        if found.size:
            values = torch.from_numpy(found.reshape(-1).view(np.uint8))
            _check(lambda: dist.recv(values, rank))
        return found


def sum_over_workers(values: Tensor, workers: WorkerGroup) -> Tensor:
    """Return the sum of all workers' values. Each worker has a loss of its own, so gradients are summed, too."""
    out: Tensor = _SumOverWorkers.apply(values, workers)  # type: ignore[no-untyped-call]
    return out


class _SumOverWorkers(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, workers: WorkerGroup) -> Tensor:
        ctx.workers = workers
        return workers.sum(values)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.workers.sum(grads[0]), None


def _check(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except RuntimeError as error:
        raise LostWorkerError(
            "another worker has ended; look at its messages above, then run the same command again"
        ) from error


class LostWorkerError(RunError):
    """The connection to another worker is lost."""
