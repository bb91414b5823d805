"""The installed version of the package."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def installed_version() -> str:
    """Return the version of the installed package, which is the repository's tag."""
    try:
        return version("verfedgnn")
    except PackageNotFoundError:  # a source tree on the path
        return "0+unknown"
