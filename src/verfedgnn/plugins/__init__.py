"""GNNs and methods that are not built in, found by name."""

from verfedgnn.plugins.registry import (
    FILES,
    GNNS,
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
