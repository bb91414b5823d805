"""Base classes of plug-ins, which have a name.

`gnn.operator.Operator` and `verfedgnn_research.baselines.Method` derive from these classes, so the registry depends on
neither.
"""

from __future__ import annotations

from typing import ClassVar


class GnnPlugin:
    """A graph neural network that a configuration can name."""

    name: ClassVar[str]
    """Name of the GNN in a configuration."""


class MethodPlugin:
    """A method that `verfedgnn compare` can name."""

    name: ClassVar[str]
    """Name of the method on the command line."""
    built_in: ClassVar[tuple[str, ...]] = ()
    """Names that no plug-in may take."""
