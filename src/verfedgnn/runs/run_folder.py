"""Whether a folder may be replaced by a new run."""

from __future__ import annotations

from pathlib import Path

from verfedgnn.config import load_config
from verfedgnn.core.errors import ConfigError, RunError
from verfedgnn.core.files import check_writable
from verfedgnn.core.option_names import option


def holds_run(folder: Path, overwrite: bool) -> bool:
    """Return whether `folder` holds a run to overwrite; raise `RunError` if it holds anything else or cannot be written."""
    check_writable(folder)
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    if not overwrite:
        raise RunError(
            f"{folder} exists already; choose another folder, resume it, or replace it with {option('overwrite', True)}"
        )
    try:
        load_config(folder / "config.toml")
    except ConfigError:
        raise RunError(
            f"{folder} is not a run folder, so {option('overwrite', True)} leaves it alone; choose another folder"
        ) from None
    return True
