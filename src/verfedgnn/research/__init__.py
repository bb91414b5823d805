"""Experiments: baselines, attacks, the paper's tables and figures, and benchmarks.

Some commands need packages that only `verfedgnn[research]` installs; `require_packages` checks for them before work begins.
"""

from __future__ import annotations

from importlib.util import find_spec

from verfedgnn.core.errors import ConfigError


def require_packages(command: str, *packages: str) -> None:
    """Raise an error with the remedy if a package that a command needs is not installed."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise missing_packages(command, *missing)


def missing_packages(command: str, *packages: str) -> ConfigError:
    """Return the error of a command whose packages are not installed."""
    names = " and ".join(packages)
    return ConfigError(
        f"verfedgnn {command} needs {names}, which is not installed; run: pip install 'verfedgnn[research]'"
    )
