"""The part of the coordinator's messages that every party must receive alike, as short statements that parties can compare.

A statement has a subject, such as `update 4`, and a value. Arrays are replaced by their SHA-256. Parties that write down the
statements they received can find out later whether a coordinator said different things to different parties.
"""

from __future__ import annotations

import hashlib
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
    RoundStart: frozenset(),
    Survivors: frozenset({"signatures"}),
    Finish: frozenset({"parameters"}),
}
"""Fields that may differ between parties: places, and signatures, which each party checks.

All others are stated. The requests and shares of masks are not: sealed shares open only among parties that received the same.
"""


def common_statements(message: Message, model: Model | None) -> Statements:
    """Return what `message` says to all parties alike; `model` is that of the training, None before it."""
    match message:
        case AlignStart():
            keys = repr([message.seal_keys, message.seal_signatures]).encode()
            return {f"alignment {message.session}": {"keys": hashlib.sha256(keys).hexdigest()}}
        case UserRows():
            return {f"rows {message.session}": {"users": message.users}}
        case Welcome():
            training = {"name": message.training, "configuration": message.config}
            sizes = {"items": message.items, "ratings": message.ratings, "typical": message.typical}
            digest = {f"digest {message.round}": {"digest": message.digest}}
            return {"training": training | sizes, **digest, **_state_copy(message, message.round)}
        case RoundStart():
            return _state_round(message, model)
        case Survivors():
            return {f"survivors {message.round}.{message.attempt}": {"survivors": message.survivors}}
        case Finish():
            fields = "round", "best_round", "digest"
            return {"result": {name: getattr(message, name) for name in fields}}
    return {}


def _state_round(message: RoundStart, model: Model | None) -> Statements:
    statements: Statements = {
        f"instruction {message.round}.{message.attempt}": {
            "active": message.active,
            "evaluate": message.evaluate,
            "best_round": message.best_round,
        }
    }
    for update in [] if model is None else split_updates(message, model.size):
        statements[f"update {update.round}"] = _state_sum(update.parties, update.total)
    if message.neighbourhoods is not None:
        subject = f"neighbourhoods {message.neighbourhood_round}"
        statements[subject] = _state_sum(message.neighbourhood_parties, message.neighbourhoods)
    return statements | _state_copy(message, message.round - 1)


def _state_sum(parties: list[int], total: NDArray[Any]) -> dict[str, Any]:
    return {"parties": parties, "sum": _hash_array(total)}


def _state_copy(message: Welcome | RoundStart, round: int) -> Statements:
    copy = {name: _hash_array(values) for name, values in copied_state(message).items()}
    return {f"parameters {round}": copy} if copy else {}


def _hash_array(values: NDArray[Any]) -> str:
    digest = hashlib.sha256(f"{values.dtype.str} {values.shape} ".encode())
    digest.update(as_bytes(np.ascontiguousarray(values)))
    return digest.hexdigest()
