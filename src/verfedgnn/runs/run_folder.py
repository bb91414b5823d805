"""Names in a run folder, whether it may be replaced by a new run, and emptying it. The import loads neither NumPy nor torch."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from verfedgnn.core.errors import ConfigError, RunError
from verfedgnn.core.files import LOCK, check_writable, writing
from verfedgnn.core.option_names import option

LISTS = "lists"
"""Folder in a run's folder with the model that orders lists."""
FINAL = "final"
"""Folder in a run's folder with the training on all ratings, whose models are served."""
TRAININGS = ("", LISTS, FINAL, f"{FINAL}/{LISTS}")
"""Folders in a run's folder that hold the models of a training."""
REPORT = "report"
"""Folder in a run's folder with its report, which may name users."""
LAST_RELEASE = "last-release"
"""Folder in a party's training with the values that it released last, before masks, until the training has finished."""
RESULT = "result"
"""Folder in a party's checkpoint with the result of a training, until the run is complete."""
FORGET_RECORD = "forget.json"
"""File in a run's folder that says which users were forgotten, by keyed hashes."""
FORGOTTEN = "forgotten.json"
"""File in a run's folder with its list of forgotten users, which stays when the run is overwritten."""
FORGET_JOURNAL = "forget.journal.json"
"""File in a run's folder while users or items are being forgotten."""
SPLIT_SECRET = "split-test.key"
"""File in a run's folder with the secret of its split test, which stays when the run is overwritten."""
AFTER = "after.json"
"""File in a run's folder that names the run before it."""
_KEPT = (LOCK, FORGOTTEN, SPLIT_SECRET)
"""Files that stay when a run is overwritten; without others, a folder counts as empty."""


def holds_run(folder: Path, overwrite: bool) -> bool:
    """Return whether `folder` holds a run to overwrite; raise `RunError` if it holds anything else or cannot be written."""
    check_writable(folder)
    if not folder.exists() or (folder.is_dir() and all(each.name in _KEPT for each in folder.iterdir())):
        return False
    if not overwrite:
        raise RunError(
            f"{folder} exists already; choose another folder, resume it, or replace it with {option('overwrite', True)}"
        )
    from verfedgnn.config import load_config

    with suppress(ConfigError):
        load_config(folder / "config.toml")  # settings for `--config` may have this name, too
        if (folder / "history.jsonl").is_file():
            return True
    raise RunError(
        f"{folder} is not a run folder, so {option('overwrite', True)} leaves it alone; choose another folder"
    )


def check_outside(out: Path) -> None:
    """Raise `RunError` if a file about users would be written into a run folder, where `forget` does not look for it."""
    for place in out.resolve().parents:
        if (place / "config.toml").is_file() and (place / "history.jsonl").is_file():
            raise RunError(
                f"{out} is inside the run folder {place}, and `forget` would not find the users in it; choose another "
                f"{option('out')}"
            )


def empty_run(folder: Path) -> None:
    """Remove the run in a locked folder; what makes it a run folder goes last, in case of a kill."""
    with writing(folder):
        for each in sorted(folder.iterdir(), key=lambda each: each.name in ("config.toml", "history.jsonl")):
            if each.is_dir() and not each.is_symlink():
                shutil.rmtree(each)
            elif each.name not in _KEPT:
                each.unlink()
