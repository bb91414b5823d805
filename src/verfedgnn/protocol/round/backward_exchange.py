r"""The backward exchange: an item learns from the others' losses, and nothing more is sent for it.

.. math::
    \frac{\partial L}{\partial y_v} = \sum_{u \in N_p(v)} \frac{\partial n_u}{\partial y_v} G_u, \qquad
    G_u = \sum_{i \neq p} \frac{\partial L_i}{\partial n_u}
        = \sum_{i \neq p} \frac{\partial L_i}{\partial e_u} \quad \text{where } h_u = e_u + n_u

With messages h_u is e_u plus the neighbourhood, so the gradient with respect to the neighbourhood *is* that of the user
embedding, whose protected sum every party receives as the update of the round. (For GGNN, where a gate stands between, it is
an approximation; the regulariser of e_u is in it, too.) It is one round old.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from verfedgnn.privacy.gradient_protection import invert_rescale
from verfedgnn.protocol.checkpoint_state import State, tensor
from verfedgnn.protocol.round.replica import Replica, participation_scale


@dataclass(frozen=True)
class Released:
    """A party's protected gradient of user parameters as it left, or what it read out of everybody's; and of which round."""

    round: int
    values: Tensor

    def put(self, state: State, name: str) -> None:
        """Into a checkpoint."""
        state.values[name] = self.round
        state.arrays[name] = self.values.cpu().numpy()

    @classmethod
    def get(cls, state: State, name: str, device: torch.device) -> Released | None:
        """What `put` put, if it did."""
        round = state.values.get(name)
        return None if round is None else cls(round, tensor(state.arrays[name], device))


def others_gradient(
    total: Tensor,
    parties: Sequence[int],
    index: int,
    own: Released | None,
    replica: Replica,
    round: int,
) -> Tensor | None:
    """G (N, D) of the round's users from the summed protected gradients of `parties` in `round`, scaled to all others.

    None if one's own part of the sum is forgotten.
    """
    model = replica.rotation.of(round).model
    values = total[: model.user_size]
    if index in parties:
        if own is None or own.round != round:
            return None
        values = values - own.values
    scale = participation_scale(replica.items, parties, index)
    rows = values[: model.users * model.config.dim].view(model.users, model.config.dim)
    return rows.to(torch.float32) * invert_rescale(replica.config.gradients, replica.rescale, scale).users
