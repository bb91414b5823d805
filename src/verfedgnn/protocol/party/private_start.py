"""A party's private parameters from an earlier training."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from verfedgnn.protocol.checkpoint_state import CheckpointState
from verfedgnn.protocol.party.private_parameters import PrivateParameters
from verfedgnn.protocol.round.start_state import EarlierRows, PublicStart, shrinkage, take_rows

ITEM_SUMS = 0.1
"""Factor of Adagrad's sums of items and their biases.

They are stepped at home, without noise, so they can follow the new ratings in larger steps.
"""


@dataclass(frozen=True)
class PrivateStart:
    """The private parameters after the last round of an earlier training, as its checkpoint holds them."""

    state: CheckpointState
    users: EarlierRows
    items: EarlierRows
    public: PublicStart
    """The public state that the party kept, with which the coordinator has to start."""
    forgotten: tuple[int, ...] = ()
    """Rows of users whom the party has forgotten since."""

    def load_into(self, private: PrivateParameters) -> None:
        """Overwrite the parameters of known items and users in parameters that have taken no step yet."""
        arrays = self.state.arrays
        for name, parameters in private.parameters.items():
            rows = self.users if name in private.model.private_per_user else self.items
            last = arrays.get(f"private.{name}.average", arrays[f"private.{name}"])
            take_rows(parameters, torch.from_numpy(last), rows, shrinkage(private.model, name))
            sums = torch.from_numpy(arrays[f"private.{name}.accumulator"])
            factor = ITEM_SUMS if name in ("items", "item_bias") else 1.0
            take_rows(private.accumulators[name], sums, rows, factor)
            if private.averaged:
                private.averages[name].copy_(parameters)
