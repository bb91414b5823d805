"""What the first worker of a party or a coordinator tells the others, and what they answer.

    first worker   order, and the part of a message that is about the other worker's users
    other worker   its part of the answer

The first worker receives and sends all messages of the federation. Each worker does the same work for its own users.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from verfedgnn.core.worker_group import WorkerGroup
from verfedgnn.privacy.masking import MaskStream
from verfedgnn.protocol.round.user_shards import Divided, UserShard
from verfedgnn.protocol.wire.framing import Message, build, describe


class Order(StrEnum):
    """What a worker does next."""

    STAGE = "stage"
    """Load a training and find its last checkpoint."""
    WELCOME = "welcome"
    ROUND = "round"
    FINISH = "finish"
    ROWS = "rows"
    """Do with the rows of a coordinator's users what `PublicRows` does."""
    RESTORE = "restore"
    CHECKPOINT = "checkpoint"
    END = "end"


class Ordered(NamedTuple):
    """An order as a worker receives it."""

    order: Order
    values: dict[str, Any]
    message: Message | None


def divide(shard: UserShard, order: Order, message: Divided, *, in_turn: bool = False) -> Divided:
    """Give the other workers an order with their parts of a message, and return this worker's part.

    With `in_turn`, one worker after the other is served, so that only one part is in memory; it takes longer.
    """
    workers = shard.workers
    for rank in range(1, workers.size):
        _give(workers, rank, order, {}, shard.all_workers[rank].take(message))
        if in_turn:
            workers.finish_sending()
    own = shard.take(message)
    workers.finish_sending()
    return own


def begin_to_divide(shard: UserShard, order: Order, message: Divided, **values: Any) -> Divided:
    """Divide a message like `divide`, but wait for what was sent before, not for what is sent now."""
    shard.workers.finish_sending()
    for rank in range(1, shard.workers.size):
        _give(shard.workers, rank, order, values, shard.all_workers[rank].take(message))
    return shard.take(message)


def tell_all(workers: WorkerGroup, order: Order, message: Message | None = None, **values: Any) -> None:
    """Give all other workers the same order, and a message with it where there is one."""
    for rank in range(1, workers.size):
        _give(workers, rank, order, values, message)
    workers.finish_sending()


def _give(
    workers: WorkerGroup, rank: int, order: Order, values: dict[str, Any], message: Message | None
) -> None:
    """Begin to give one worker an order."""
    _send_text(workers, rank, {"order": order, "values": values, "message": message is not None})
    if message is not None:
        _send_message(workers, rank, message)


def wait_for_order(workers: WorkerGroup) -> Ordered:
    """Wait for the next order of the first worker."""
    found = _receive_text(workers, 0)
    message = receive_message(workers, 0) if found["message"] else None
    return Ordered(Order(found["order"]), found["values"], message)


def send_message(workers: WorkerGroup, rank: int, message: Message) -> None:
    """Send a message to another worker; its arrays are not packed."""
    _send_message(workers, rank, message)
    workers.finish_sending()


def _send_message(workers: WorkerGroup, rank: int, message: Message) -> None:
    kind, text, arrays = describe(message)
    _send_text(workers, rank, {"kind": kind, "text": text})
    _send_arrays(workers, rank, arrays)


def receive_message(workers: WorkerGroup, rank: int) -> Message:
    """Receive what `send_message` sent."""
    found = _receive_text(workers, rank)
    return build(found["kind"], found["text"], receive_arrays(workers, rank))


def send_arrays(workers: WorkerGroup, rank: int, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Send named arrays to another worker."""
    _send_arrays(workers, rank, arrays)
    workers.finish_sending()


def _send_arrays(workers: WorkerGroup, rank: int, arrays: Mapping[str, NDArray[Any]]) -> None:
    about = {name: [list(values.shape), str(values.dtype)] for name, values in arrays.items()}
    _send_text(workers, rank, about)
    workers.send(rank, list(arrays.values()))


def receive_arrays(workers: WorkerGroup, rank: int) -> dict[str, NDArray[Any]]:
    """Receive what `send_arrays` sent."""
    about = _receive_text(workers, rank)
    return {name: workers.receive(rank, shape, dtype) for name, (shape, dtype) in about.items()}


def share_streams(workers: WorkerGroup, streams: Sequence[MaskStream] | None) -> list[MaskStream]:
    """Return the masks of a trip, which only the first worker can make; the others pass None."""
    text = json.dumps([[stream.key.hex(), stream.adds] for stream in streams or []]).encode()
    shared = json.loads(workers.gather(text)[0])
    return [MaskStream(bytes.fromhex(key), adds) for key, adds in shared]


def _send_text(workers: WorkerGroup, rank: int, value: Any) -> None:
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    workers.send(rank, [np.array([len(text)], np.int64), text])


def _receive_text(workers: WorkerGroup, rank: int) -> Any:
    (size,) = workers.receive(rank, (1,), "int64").tolist()
    return json.loads(workers.receive(rank, (size,), "uint8").tobytes())
