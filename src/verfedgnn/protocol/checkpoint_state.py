"""The state of a coordinator or a party, as arrays and plain values: what a checkpoint holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

EvaluatedModel = tuple[int, dict[str, Tensor]]
"""A model as a party evaluated it, and the round: h_u, h_v, e_v^0."""


@dataclass
class State:
    """Arrays by name, and values that fit into JSON."""

    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)

    def put_model(self, name: str, model: EvaluatedModel | None) -> None:
        """An evaluated model and its round, or that there is none."""
        self.values[name] = None if model is None else model[0]
        if model is not None:
            self.arrays |= {f"{name}.{key}": value.cpu().numpy() for key, value in model[1].items()}

    def get_model(self, name: str, device: torch.device) -> EvaluatedModel | None:
        """What `put_model` put."""
        round = self.values[name]
        if round is None:
            return None
        keys = [key for key in self.arrays if key.startswith(name + ".")]
        return round, {key.removeprefix(name + "."): tensor(self.arrays[key], device) for key in keys}


def tensor(values: NDArray[Any], device: torch.device) -> Tensor:
    """An array as a tensor of its own on `device`."""
    return torch.from_numpy(np.array(values)).to(device)
