"""The part of the coordinator's messages that every party must receive alike, as short statements that parties can compare.

A statement has a subject, such as `update 4`, and a value. Arrays are replaced by their SHA-256. Parties that write down the
statements they received can find out later whether a coordinator said different things to different parties.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verfedgnn.core.array_files import as_bytes
from verfedgnn.gnn.model import Model
from verfedgnn.protocol.messages import (
    AlignStart,
    Finish,
    Message,
    RoundStart,
    Survivors,
    UserRows,
    Welcome,
    copied_state,
)
from verfedgnn.protocol.replica import split_updates

Statements = dict[str, dict[str, Any]]
"""Values by subject; each value has named fields."""

TO_EACH: dict[type[Message], frozenset[str]] = {
    AlignStart: frozenset({"index"}),
    UserRows: frozenset({"rows"}),
    Welcome: frozenset({"index", "stay"}),
    Survivors: frozenset({"signatures"}),
    Finish: frozenset({"parameters"}),
}
"""Fields that may differ between parties: places, whether a party is active, and signatures, which each party checks.

All others are stated. The requests and shares of masks are not: sealed shares open only among parties that received the same.
"""


def common_statements(message: Message, model: Model | None) -> Statements:
    """Return what `message` says to all parties alike; `model` is that of the training, None before it."""
    state = _STATE.get(type(message))
    return {} if state is None else state(message, model)


def _state_start(message: AlignStart, _: Model | None) -> Statements:
    keys = [message.seal_keys, message.seal_signatures]
    return {f"alignment {message.session}": {"keys": _hash(repr(keys).encode())}}


def _state_rows(message: UserRows, _: Model | None) -> Statements:
    return {f"rows {message.session}": {"users": message.users}}


def _state_welcome(message: Welcome, _: Model | None) -> Statements:
    sizes = {
        "items": message.items,
        "ratings": message.ratings,
        "typical": message.typical,
    }
    found: Statements = {
        "training": {"name": message.training, "configuration": message.config, **sizes},
        f"digest {message.round}": {"digest": message.digest},
    }
    if message.parameters is not None:
        found[f"parameters {message.round}"] = _state_copy(message)
    return found


def _state_copy(message: Welcome | RoundStart) -> dict[str, Any]:
    return {name: _hash_array(values) for name, values in copied_state(message).items()}


def _state_round(message: RoundStart, model: Model | None) -> Statements:
    found: Statements = {
        f"instruction {message.round}.{message.attempt}": {
            "active": message.active,
            "evaluate": message.evaluate,
            "best_round": message.best_round,
        }
    }
    if model is not None:
        for update in split_updates(message, model.size):
            found[f"update {update.round}"] = {"parties": update.parties, "sum": _hash_array(update.total)}
    if message.neighbourhoods is not None:
        found[f"neighbourhoods {message.neighbourhood_round}"] = {
            "parties": message.neighbourhood_parties,
            "sum": _hash_array(message.neighbourhoods),
        }
    if message.parameters is not None:
        found[f"parameters {message.round - 1}"] = _state_copy(message)
    return found


def _state_survivors(message: Survivors, _: Model | None) -> Statements:
    return {
        f"survivors {message.round}.{message.attempt}": {"survivors": message.survivors},
    }


def _state_finish(message: Finish, _: Model | None) -> Statements:
    return {
        "result": {
            "round": message.round,
            "best_round": message.best_round,
            "digest": message.digest,
        }
    }


_STATE: dict[type[Message], Callable[[Any, Model | None], Statements]] = {
    AlignStart: _state_start,
    UserRows: _state_rows,
    Welcome: _state_welcome,
    RoundStart: _state_round,
    Survivors: _state_survivors,
    Finish: _state_finish,
}


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _hash_array(values: NDArray[Any]) -> str:
    found = hashlib.sha256(f"{values.dtype.str} {values.shape} ".encode())
    found.update(as_bytes(np.ascontiguousarray(values)))
    return found.hexdigest()
