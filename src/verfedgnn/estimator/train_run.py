"""Training and resuming from Python, with the progress on a terminal or in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from verfedgnn.config import Config
from verfedgnn.data import PartyData
from verfedgnn.reports.round_progress import watching
from verfedgnn.runs.run import Run
from verfedgnn.training.progress import Stop, Watcher, never
from verfedgnn.training.train import resume as resume_quietly
from verfedgnn.training.train import train as train_quietly


def train(
    parties: Sequence[PartyData],
    config: Config | None = None,
    *,
    out: str | Path | None = None,
    device: str | torch.device = "cpu",
    overwrite: bool = False,
    after: str | Path | None = None,
    parts: Sequence[NDArray[np.int8]] | None = None,
    watch: Watcher | None = None,
    stop: Stop = never,
    verbose: bool = True,
) -> Run:
    """Train `parties` together and return the run; with `out`, also write it to a folder that can be resumed and loaded.

    Terminals and notebooks show the progress, unless `verbose` is False. `watch` is called after every round. When `stop()` turns
    true, the round is finished, a checkpoint is written and `Interrupted` is raised.

    `after` is the folder of the run before this one. Users whom it has forgotten are left out, and `metrics["after"]` says how far the
    data have moved since. The training starts from nothing in any case.

    `parts` replaces the configured split: one array per party with `TRAIN`, `VALID` or `TEST` for each rating.
    """
    with watching(verbose, watch) as watcher:
        return train_quietly(
            parties,
            config,
            out=out,
            device=device,
            overwrite=overwrite,
            after=after,
            parts=parts,
            watch=watcher,
            stop=stop,
        )


def resume(
    out: str | Path,
    *,
    device: str | torch.device = "cpu",
    watch: Watcher | None = None,
    stop: Stop = never,
    verbose: bool = True,
) -> Run:
    """Resume an interrupted run from its last checkpoint; the result is the same as without the interruption.

    Terminals and notebooks show the progress, unless `verbose` is False.
    """
    with watching(verbose, watch) as watcher:
        return resume_quietly(out, device=device, watch=watcher, stop=stop)
