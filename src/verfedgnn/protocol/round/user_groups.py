"""Hashes of arrays with a row per user, made of the hashes of small groups of users.

Workers that share a party's users hash their own groups. So the result does not depend on the number of workers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verfedgnn.core.worker_group import WorkerGroup

GROUP = 256
"""Users in a group; the last group may be smaller."""


def hash_users(values: Sequence[NDArray[Any]], workers: WorkerGroup | None = None) -> bytes:
    """Return the hash of arrays that have a row per user; with `workers`, of the rows of all workers in order."""
    starts = range(0, len(values[0]), GROUP)
    groups = b"".join(hash_arrays(each[start : start + GROUP] for each in values) for start in starts)
    return hashlib.sha256(groups if workers is None else b"".join(workers.gather(groups))).digest()


def hash_arrays(arrays: Iterable[NDArray[Any]]) -> bytes:
    """Return the SHA-256 of arrays that follow each other."""
    found = hashlib.sha256()
    for values in arrays:
        found.update(np.ascontiguousarray(values).data)
    return found.digest()
