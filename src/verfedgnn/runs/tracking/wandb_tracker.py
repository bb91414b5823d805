"""Weights & Biases. `WANDB_MODE=offline`, `WANDB_PROJECT` and its other variables work as usual."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import wandb


class WandbTracker:
    """A run in Weights & Biases."""

    def start(self, name: str, folder: Path, run_id: str | None) -> str | None:
        """Begin a run, or continue the one with `run_id`. No source code is stored."""
        project = os.environ.get("WANDB_PROJECT", "verfedgnn")
        quiet = wandb.Settings(silent=True, disable_code=True, disable_git=True)
        self._run = wandb.init(
            project=project, name=name, id=run_id, resume="allow", dir=folder.parent, settings=quiet
        )
        return str(self._run.id)

    def parameters(self, values: Mapping[str, str]) -> None:
        """Log the settings of a run as parameters."""
        self._run.config.update(dict(values), allow_val_change=True)

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Log figures at a round; a training of lists begins with round 1 again, so the round is a figure of its own."""
        self._run.log({**values, "round": step})

    def artefacts(self, files: Sequence[Path]) -> None:
        """Upload the files of a run as artefacts."""
        for file in files:
            self._run.save(str(file), base_path=str(file.parent), policy="now")

    def end(self, finished: bool) -> None:
        """Close the tracked run and upload what is left."""
        self._run.finish(exit_code=0 if finished else 1)
