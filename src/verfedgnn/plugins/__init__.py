"""GNNs and methods that are not built in, found by name."""

from verfedgnn.plugins.registry import (
    FILES,
    GNNS,
    METHOD_NAMES,
    REMEDY,
    check_gnn,
    hash_code,
    identify_gnn,
    list_files,
    list_gnns,
    load_file,
    load_gnn,
    load_methods,
    register,
)

__all__ = [
    "FILES",
    "GNNS",
    "METHOD_NAMES",
    "REMEDY",
    "check_gnn",
    "hash_code",
    "identify_gnn",
    "list_files",
    "list_gnns",
    "load_file",
    "load_gnn",
    "load_methods",
    "register",
]
