"""Base classes of plug-ins: a name and, for a GNN, the model form that it is written for.

`gnn.operator.Operator` and `research.baselines.Method` derive from these classes, so the registry depends on
neither.
"""

from __future__ import annotations

from typing import ClassVar


class GnnPlugin:
    """A graph neural network that a configuration can name."""

    name: ClassVar[str]
    """Name of the GNN in a configuration."""
    form: ClassVar[str] = "propagation"
    """The `model.form` that the GNN is written for."""


class MethodPlugin:
    """A method that `verfedgnn compare` can name."""

    name: ClassVar[str]
    """Name of the method on the command line."""
