"""Which code a plug-in is: where it comes from and a SHA-256, as one line for files that are kept, sent and compared.

    my_gnn.py sha256:3f2a...    a file of one's own: the hash is the file's, as `sha256sum my_gnn.py` prints it
    acme 1.0 sha256:9c41...     of an installed package: the hash is that of "acme 1.0" and the source of the module

Before the hash stands what people look for; two codes are the same if their hashes are. What a plug-in imports is not hashed: the
version of its package stands for that.
"""

from __future__ import annotations

import hashlib
import sys
from importlib.metadata import entry_points
from itertools import takewhile
from pathlib import Path

GROUPS = ("verfedgnn.gnns", "verfedgnn.methods")
"""Entry points by which packages offer plug-ins."""
PATTERN = r"^[^\x00-\x1f\x7f]{1,100} sha256:[0-9a-f]{64}$"
"""What `identify` returns."""


def find_source(plugin: type) -> str:
    """Where a class is written; the module's file, since a file may be loaded under several names."""
    return getattr(sys.modules.get(plugin.__module__), "__file__", None) or plugin.__module__


def identify(plugin: type) -> str | None:
    """Which code a class is, as it stands on the disk now; None for one that is in no file, such as a notebook's."""
    file = Path(find_source(plugin))
    if not file.is_file():
        return None
    source = file.read_bytes()
    package = _package(plugin)
    if package is not None:
        source = f"{package}\n".encode() + source
    name = "".join(c if c.isprintable() else "?" for c in package or file.name)[:100]
    return f"{name} sha256:{hashlib.sha256(source).hexdigest()}"


def extract_digest(code: str) -> str:
    """The hash in what `identify` returned, 64 hex digits."""
    return code[-64:]


def format_code(code: str) -> str:
    """What `identify` returned, for people: the first digits are enough to see which file it is."""
    return f"{code[: -len(' sha256:') - 64]} (SHA-256 {extract_digest(code)[:16]}...)"


def _package(plugin: type) -> str | None:
    """Name and version of the installed package that offers plug-ins from where this class is written, or nearest to it."""
    near = []
    for entry in (entry for group in GROUPS for entry in entry_points(group=group)):
        pairs = zip(entry.module.split("."), plugin.__module__.split("."), strict=False)
        common = sum(
            1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)
        )  # packages may share a first name
        if entry.dist is not None:
            near.append((common, f"{entry.dist.name} {entry.dist.version}"))
    common, package = max(near, default=(0, ""))
    return package if common else None
