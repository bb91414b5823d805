"""The installed packages: this one's version, and pandas for readers who have it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from verfedgnn.core.errors import ConfigError


def installed_version() -> str:
    """Return the version of the installed package, which is the repository's tag."""
    try:
        return version("verfedgnn")
    except PackageNotFoundError:  # a source tree on the path
        return "0+unknown"


def make_frame(rows: Sequence[dict[str, Any]]) -> Any:
    """Return rows as a data frame of pandas; raise `ConfigError` if pandas is not installed."""
    try:
        import pandas as pd
    except ImportError:
        raise ConfigError(
            "a data frame needs pandas, which is not installed; run `pip install pandas`, or use to_dict()"
        ) from None
    return pd.DataFrame(list(rows))
