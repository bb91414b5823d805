"""The state of a coordinator or a party in a checkpoint, as arrays and plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

EvaluatedModel = tuple[int, dict[str, Tensor]]
"""The round of an evaluation, and the evaluated model: h_u, h_v and e_v^0."""


@dataclass
class CheckpointState:
    """Arrays, and values that fit into JSON."""

    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Arrays by name; those of a file are read when they are asked for."""
    values: dict[str, Any] = field(default_factory=dict)

    def put_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Add named arrays to the state; an array replaces one of the same name."""
        self.arrays = {**self.arrays, **arrays}

    def put_model(self, name: str, model: EvaluatedModel | None) -> None:
        """Store an evaluated model and its round, or that there is none."""
        self.values[name] = None if model is None else model[0]
        if model is not None:
            self.put_arrays({f"{name}.{key}": value.cpu().numpy() for key, value in model[1].items()})

    def get_model(self, name: str, device: torch.device) -> EvaluatedModel | None:
        """Return what `put_model` stored."""
        round = self.values[name]
        if round is None:
            return None
        keys = [key for key in self.arrays if key.startswith(name + ".")]
        return round, {key.removeprefix(name + "."): to_tensor(self.arrays[key], device) for key in keys}


def to_tensor(values: NDArray[Any], device: torch.device) -> Tensor:
    """Copy an array into a new tensor on `device`."""
    return torch.from_numpy(np.array(values)).to(device)
