"""Identity of a plug-in's code: its origin and a SHA-256, as one line that can be stored, sent and compared.

    my_gnn.py sha256:3f2a...    a single file: the hash of the file, as `sha256sum my_gnn.py` prints it
    acme 1.0 sha256:9c41...     an installed package: the hash of "acme 1.0" and the source of the module

The text before the hash is for people; two identities are equal if their hashes are equal. The modules that a
plug-in imports are not hashed; the version of its package covers them.
"""

from __future__ import annotations

import hashlib
import sys
from importlib.metadata import entry_points
from itertools import takewhile
from pathlib import Path

from verfedgnn.core.printable import make_printable

GROUPS = ("verfedgnn.gnns", "verfedgnn.methods")
"""Entry point groups in which packages offer plug-ins."""
PATTERN = r"^[^\x00-\x1f\x7f]{1,100} sha256:[0-9a-f]{64}$"
"""Regular expression that every result of `identify` matches."""


def find_source(plugin: type) -> str:
    """Return the file in which a class is defined, or its module's name if there is no file.

    The file is used because it can be loaded under several module names.
    """
    return getattr(sys.modules.get(plugin.__module__), "__file__", None) or plugin.__module__


def identify(plugin: type) -> str | None:
    """Return the identity of a class's code as it is on disk now, or None if it has no file, as in a
    notebook.
    """
    file = Path(find_source(plugin))
    if not file.is_file():
        return None
    source = file.read_bytes()
    package = _package(plugin)
    if package is not None:
        source = f"{package}\n".encode() + source
    name = make_printable(package or file.name).replace("\n", "?")[:100]
    return f"{name} sha256:{hashlib.sha256(source).hexdigest()}"


def extract_digest(code: str) -> str:
    """Return the hash in an identity, 64 hex digits."""
    return code[-64:]


def format_code(code: str) -> str:
    """Format an identity for people, with the first 16 digits of the hash."""
    return f"{code[: -len(' sha256:') - 64]} (SHA-256 {extract_digest(code)[:16]}...)"


def _package(plugin: type) -> str | None:
    """Return name and version of the installed package whose entry points are closest to the module of a
    class.
    """
    near = []
    for entry in (entry for group in GROUPS for entry in entry_points(group=group)):
        pairs = zip(entry.module.split("."), plugin.__module__.split("."), strict=False)
        # Different packages may share a namespace.
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        if entry.dist is not None:
            near.append((common, f"{entry.dist.name} {entry.dist.version}"))
    common, package = max(near, default=(0, ""))
    return package if common else None
