"""Train a federation on one machine, and resume a training that was interrupted."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from verfedgnn.config import Config, load_config
from verfedgnn.core.errors import ConfigError, Interrupted, RunError
from verfedgnn.core.files import check_writable
from verfedgnn.data import PartyData, check_parties
from verfedgnn.privacy.accounting import SIMULATED, privacy_report
from verfedgnn.protocol.party.party import Party
from verfedgnn.protocol.round.replica import parameters_digest
from verfedgnn.runs.metrics_file import build_metrics
from verfedgnn.runs.party_tables import read_party_tables
from verfedgnn.runs.prepared_data import prepare
from verfedgnn.runs.run import Run, begin_folder, describe_code_change
from verfedgnn.training.gate import gated_models
from verfedgnn.training.loop import TrainingLoop, device_of, resume_hint, usable_device
from verfedgnn.training.progress import Stop, Watcher, never


def train(
    parties: Sequence[PartyData],
    config: Config | None = None,
    *,
    out: str | Path | None = None,
    device: str | torch.device = "cpu",
    stack: bool = True,
    overwrite: bool = False,
    parts: Sequence[NDArray[np.int8]] | None = None,
    party: type[Party] = Party,
    watch: Watcher | None = None,
    stop: Stop = never,
) -> Run:
    """Train `parties` together and return the run; with `out`, also write it as a folder that can be resumed and loaded.

    `watch` is called after every round. When `stop()` turns true, the round is finished, a checkpoint is written and
    `Interrupted` is raised. `stack=False` computes the parties one by one, bit for bit as separate processes would;
    parties that are too large to be stacked are always computed one by one.

    `parts` gives the part of every rating if you do not want the configured split. `party` is a variant of the protocol's
    party; it cannot be combined with `out`, because a run folder does not record the variant.
    """
    config = Config.preset("paper") if config is None else config
    if not isinstance(config, Config):
        raise ConfigError('config must be a Config, for example Config.preset("paper", epochs=20)')
    config = config.with_code()
    check_parties(parties)
    folder = Path(out) if out is not None else None
    if folder is not None and party is not Party:
        raise ConfigError("a run folder does not record a variant of the party; leave out `out`")
    replaced = folder is not None and holds_run(folder, overwrite)
    prepared = prepare(parties, config, usable_device(device), parts)
    loop = TrainingLoop(prepared, config, folder=folder, stack=stack, party=party)
    if folder is not None:
        if replaced:
            shutil.rmtree(folder)
        begin_folder(folder, config, parties, [each.parts for each in prepared])
    return _run_to_end(loop, watch, stop)


def resume(
    out: str | Path,
    *,
    device: str | torch.device = "cpu",
    stack: bool = True,
    watch: Watcher | None = None,
    stop: Stop = never,
) -> Run:
    """Resume an interrupted run from its last checkpoint; the result is the same as without the interruption."""
    folder = Path(out)
    if not (folder / "config.toml").is_file():
        raise RunError(f"{folder} holds no run to resume; start one with `verfedgnn train --out {folder}`")
    if (folder / "metrics.json").is_file():
        return Run.load(folder)
    config = load_config(folder / "config.toml")
    other = describe_code_change(config)
    if other is not None:
        raise RunError(
            f"{folder} was begun with {other}; go back to that version to resume it, or train anew with --overwrite"
        )
    parties, parts = read_party_tables(folder / "parties")
    prepared = prepare(parties, config, usable_device(device), parts)
    loop = TrainingLoop(prepared, config, folder=folder, stack=stack)
    loop.restore()
    return _run_to_end(loop, watch, stop)


def _run_to_end(loop: TrainingLoop, watch: Watcher | None, stop: Stop) -> Run:
    """Run the rounds, let every party choose its gate, and compute the figures."""
    config = loop.config
    trained = loop.run(watch, stop)
    models = trained.models
    gated = None
    if config.training.gate:
        try:
            gated = gated_models(loop.prepared, models, config, trained.ratings, watch=watch, stop=stop)
        except Interrupted:
            raise Interrupted(
                "the federation is trained; the parties' gates are not chosen yet", resume_hint(loop.folder)
            ) from None
        models = [each.model for each in gated]
    first = next(iter(loop.runtime.parties.values()))
    metrics = build_metrics(
        loop.prepared,
        models,
        config,
        trained.ledger,
        rounds=trained.rounds,
        best_round=trained.best_round,
        seconds=trained.seconds,
        privacy=privacy_report(
            config,
            releases=trained.releases.gradients,
            exchanges=trained.releases.neighbourhoods,
            users=first.data.users,
            rows=first.projection.rows if first.projection is not None else 0,
            protected=first.projection.protected if first.projection is not None else True,
            validations=len(trained.history),
            randomness=SIMULATED,
        ),
        digest=parameters_digest(trained.public),
        gates=[each.gate for each in gated] if gated else None,
    )
    run = Run(
        config,
        [each.party for each in loop.prepared],
        [each.parts for each in loop.prepared],
        models,
        metrics,
        trained.history,
        trained.ledger,
        trained.public,
        device_of(loop.prepared),
        alone=[each.alone for each in gated] if gated else None,
    )
    if loop.folder is not None:
        run.complete_folder(loop.folder)
    return run


def holds_run(folder: Path, overwrite: bool) -> bool:
    """Return whether `folder` holds a run to overwrite; raise `RunError` if it holds anything else or cannot be written."""
    check_writable(folder)
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    if not overwrite:
        raise RunError(
            f"{folder} exists already; choose another --out, --resume it, or replace it with --overwrite"
        )
    try:
        load_config(folder / "config.toml")
    except ConfigError:
        raise RunError(
            f"{folder} is not a run folder, so --overwrite leaves it alone; choose another --out"
        ) from None
    return True
