"""A party's private parameters and the state of their optimiser: all that is per item, and what a party keeps per user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from verfedgnn.config.sections import TrainingConfig
from verfedgnn.core.errors import RunError
from verfedgnn.core.vectors import clip_rows
from verfedgnn.protocol.checkpoint_state import State, tensor
from verfedgnn.protocol.round.optimizer import average, step


@dataclass(frozen=True)
class Private:
    """Parameters by name (`Model.private_shapes`), Adagrad's sums of squares, running averages."""

    parameters: dict[str, Tensor]
    accumulators: dict[str, Tensor]
    averages: dict[str, Tensor]
    """Running averages of the parameters; the parameters themselves where none are kept."""

    @classmethod
    def initial(cls, parameters: Mapping[str, Tensor], device: torch.device, averaged: bool) -> Private:
        """Before the first round."""
        moved = {name: value.to(device) for name, value in parameters.items()}
        zero = {name: torch.zeros_like(value) for name, value in moved.items()}
        return cls(moved, zero, {name: value.clone() for name, value in moved.items()} if averaged else moved)

    @property
    def averaged(self) -> bool:
        """Whether averages are kept."""
        return self.averages is not self.parameters

    def clone(self) -> Private:
        """A copy that later steps leave alone."""
        parameters, accumulators, averages = (
            {name: value.clone() for name, value in part.items()}
            for part in (self.parameters, self.accumulators, self.averages)
        )
        return Private(parameters, accumulators, averages if self.averaged else parameters)

    def of_users(self, users: slice | None) -> dict[str, Tensor]:
        """The parameters, what is kept per user for some users only."""
        if users is None:
            return self.parameters
        return {
            name: value[users] if name.startswith("own_") else value
            for name, value in self.parameters.items()
        }

    def all_users(self, gradients: Mapping[str, Tensor], users: slice) -> dict[str, Tensor]:
        """Gradients of `of_users(users)` as gradients of all users: 0 for the others."""
        found = dict(gradients)
        for name, value in gradients.items():
            if name.startswith("own_") and value.shape != self.parameters[name].shape:
                found[name] = torch.zeros_like(self.parameters[name])
                found[name][users] = value
        return found

    def step(
        self, gradients: Mapping[str, Tensor], config: TrainingConfig, round: int, bound: float | None = None
    ) -> None:
        """One step, in place; with a `bound`, item embeddings stay within it."""
        for name, gradient in gradients.items():
            lr = config.lr * (config.lr_messages if name == "messages" else config.lr_private)
            step(self.parameters[name], self.accumulators[name], gradient, config.optimizer, lr)
            if bound is not None and name == "items":
                self.parameters[name].copy_(clip_rows(self.parameters[name], bound))
            if self.averaged:
                average(self.averages[name], self.parameters[name], config.average, round)

    def put(self, state: State, prefix: str) -> None:
        """Into a checkpoint."""
        for name, value in self.parameters.items():
            state.arrays[f"{prefix}.{name}"] = value.cpu().numpy()
            state.arrays[f"{prefix}.{name}.accumulator"] = self.accumulators[name].cpu().numpy()
            if self.averaged:
                state.arrays[f"{prefix}.{name}.average"] = self.averages[name].cpu().numpy()

    def get(self, state: State, prefix: str) -> Private:
        """What `put` put, if it has the shapes of this one."""
        for name, value in self.parameters.items():
            shape = state.arrays[f"{prefix}.{name}"].shape
            if shape != value.shape:
                raise RunError(
                    f"the checkpoint has {shape[0]:,} {name}, the ratings have {len(value):,}; give the same data"
                )
        device = next(iter(self.parameters.values())).device

        def read(suffix: str) -> dict[str, Tensor]:
            return {
                name: tensor(state.arrays[f"{prefix}.{name}{suffix}"], device) for name in self.parameters
            }

        parameters = read("")
        return Private(parameters, read(".accumulator"), read(".average") if self.averaged else parameters)
