"""The hash of arrays that follow each other."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray


def hash_arrays(arrays: Iterable[NDArray[Any]]) -> bytes:
    """Return the SHA-256 of arrays that follow each other."""
    found = hashlib.sha256()
    for values in arrays:
        found.update(np.ascontiguousarray(values).data)
    return found.digest()
