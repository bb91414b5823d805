"""GNNs and methods that are not built in, found by name."""

from verfedgnn.plugins.registry import (
    FILES,
    GNNS,
    METHOD_NAMES,
    REMEDY,
    check_gnn,
    code,
    files,
    gnn,
    gnn_code,
    gnn_names,
    load_file,
    methods,
    register,
)

__all__ = [
    "FILES",
    "GNNS",
    "METHOD_NAMES",
    "REMEDY",
    "check_gnn",
    "code",
    "files",
    "gnn",
    "gnn_code",
    "gnn_names",
    "load_file",
    "methods",
    "register",
]
