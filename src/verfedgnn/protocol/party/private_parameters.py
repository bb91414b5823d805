"""A party's private parameters and the state of their optimiser: everything per item, and what it keeps per user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from verfedgnn.config.sections import TrainingConfig
from verfedgnn.core.errors import RunError
from verfedgnn.core.vectors import clip_rows
from verfedgnn.gnn.model import Model
from verfedgnn.protocol.checkpoint_state import CheckpointState, to_tensor
from verfedgnn.protocol.round.optimizer import average, step


@dataclass(frozen=True)
class PrivateParameters:
    """Private parameters by name (`Model.private_shapes`), with Adagrad's sums of squares and running averages."""

    model: Model
    parameters: dict[str, Tensor]
    accumulators: dict[str, Tensor]
    averages: dict[str, Tensor]
    """Running averages of the parameters; the parameters themselves if the configuration keeps no averages."""

    @classmethod
    def initial(
        cls, model: Model, parameters: Mapping[str, Tensor], device: torch.device, averaged: bool
    ) -> PrivateParameters:
        """Return the state before the first round."""
        moved = {name: value.to(device) for name, value in parameters.items()}
        zero = {name: torch.zeros_like(value) for name, value in moved.items()}
        averages = {name: value.clone() for name, value in moved.items()} if averaged else moved
        return cls(model, moved, zero, averages)

    @property
    def averaged(self) -> bool:
        """Whether running averages are kept."""
        return self.averages is not self.parameters

    def clone(self) -> PrivateParameters:
        """Return a copy that later steps do not change."""
        parameters, accumulators, averages = (
            {name: value.clone() for name, value in values.items()}
            for values in (self.parameters, self.accumulators, self.averages)
        )
        return PrivateParameters(
            self.model, parameters, accumulators, averages if self.averaged else parameters
        )

    def of_users(self, users: slice) -> dict[str, Tensor]:
        """Return the parameters with the rows of some users only."""
        return self.model.map_private_users(self.parameters, lambda value: value[users])

    def expand_gradients(self, gradients: Mapping[str, Tensor], users: slice) -> dict[str, Tensor]:
        """Expand gradients of `of_users(users)` to all users, with 0 for the others."""

        def expand(value: Tensor) -> Tensor:
            if len(value) == self.model.users:
                return value
            found = value.new_zeros(self.model.users, value.shape[1])
            found[users] = value
            return found

        return self.model.map_private_users(gradients, expand)

    def step(
        self, gradients: Mapping[str, Tensor], config: TrainingConfig, round: int, bound: float | None = None
    ) -> None:
        """Take one step in place; with a `bound`, clip item embeddings to it."""
        for name, gradient in gradients.items():
            lr = config.lr * (config.lr_messages if name == "messages" else config.lr_private)
            step(self.parameters[name], self.accumulators[name], gradient, config.optimizer, lr)
            if bound is not None and name == "items":
                self.parameters[name].copy_(clip_rows(self.parameters[name], bound))
            if self.averaged:
                average(self.averages[name], self.parameters[name], config.average, round)

    def put(self, state: CheckpointState, prefix: str) -> None:
        """Store the parameters and their optimiser's state in a checkpoint."""
        for name, value in self.parameters.items():
            values = {"": value, ".accumulator": self.accumulators[name]}
            if self.averaged:
                values[".average"] = self.averages[name]
            state.put_arrays({f"{prefix}.{name}{key}": each.cpu().numpy() for key, each in values.items()})

    def get(self, state: CheckpointState, prefix: str) -> PrivateParameters:
        """Return what `put` stored; raise `RunError` if its shapes differ from these."""
        for name, value in self.parameters.items():
            shape = state.arrays[f"{prefix}.{name}"].shape
            if shape != value.shape:
                raise RunError(
                    f"the checkpoint has {shape[0]:,} {name}, the ratings have {len(value):,}; give the same data"
                )
        device = next(iter(self.parameters.values())).device

        def read(suffix: str) -> dict[str, Tensor]:
            return {
                name: to_tensor(state.arrays[f"{prefix}.{name}{suffix}"], device) for name in self.parameters
            }

        parameters = read("")
        averages = read(".average") if self.averaged else parameters
        return PrivateParameters(self.model, parameters, read(".accumulator"), averages)
