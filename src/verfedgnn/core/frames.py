"""Data frames of results, for readers who have pandas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from verfedgnn.core.errors import ConfigError


def make_frame(rows: Sequence[dict[str, Any]]) -> Any:
    """Return rows as a data frame of pandas; raise `ConfigError` if pandas is not installed."""
    try:
        import pandas as pd
    except ImportError:
        raise ConfigError(
            "a data frame needs pandas, which is not installed; run `pip install pandas`, or use to_dict()"
        ) from None
    return pd.DataFrame(list(rows))
