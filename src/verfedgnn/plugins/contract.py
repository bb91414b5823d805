"""What the registry asks of a plug-in: a name, and for a GNN the model form it is written for.

`gnn.operator.Operator` and `research.baselines.Method` derive from these classes, so that the registry needs to know neither.
"""

from __future__ import annotations

from typing import ClassVar


class GnnPlugin:
    """A graph neural network that a configuration can name."""

    name: ClassVar[str]
    """The name in a configuration."""
    form: ClassVar[str] = "propagation"
    """The `model.form` it is written for."""


class MethodPlugin:
    """A method that `verfedgnn compare` can name."""

    name: ClassVar[str]
    """The name on the command line."""
