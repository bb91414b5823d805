"""Train a federation on one machine, and resume a training that was interrupted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from verfedgnn.config import Config, load_config
from verfedgnn.core.errors import ConfigError, Interrupted, RunError
from verfedgnn.core.files import lock_folder, make_folder
from verfedgnn.core.option_names import option
from verfedgnn.data import PartyData, check_parties
from verfedgnn.data.ratings import format_count
from verfedgnn.privacy.accounting import SIMULATED, privacy_report
from verfedgnn.protocol.party import Party
from verfedgnn.protocol.replica import parameters_digest
from verfedgnn.runs.forget_record import ForgottenUsers, read_forgotten_users
from verfedgnn.runs.metrics_file import build_metrics
from verfedgnn.runs.party_tables import read_party_tables
from verfedgnn.runs.prepared_data import Prepared, count_data, prepare
from verfedgnn.runs.run import Run, begin_folder, describe_code_change, write_history
from verfedgnn.runs.run_before import read_before, recorded_before, write_before
from verfedgnn.runs.run_folder import empty_run, holds_run
from verfedgnn.runs.run_layout import FORGOTTEN, LISTS
from verfedgnn.training.loop import Trained, TrainingLoop, device_of, resume_hint, usable_device
from verfedgnn.training.party_gate import gate_parties
from verfedgnn.training.progress import Stop, Watcher, never
from verfedgnn.training.simple_models import liked


def train(
    parties: Sequence[PartyData],
    config: Config | None = None,
    *,
    out: str | Path | None = None,
    device: str | torch.device = "cpu",
    overwrite: bool = False,
    after: str | Path | None = None,
    parts: Sequence[NDArray[np.int8]] | None = None,
    party: type[Party] = Party,
    watch: Watcher | None = None,
    stop: Stop = never,
) -> Run:
    """Train `parties` together and return the run; with `out`, also write it to a folder that can be resumed and loaded.

    `watch` is called after every round. When `stop()` turns true, the round is finished, a checkpoint is written and
    `Interrupted` is raised.

    `after` is the folder of the run before this one. Users whom it has forgotten are left out, and `metrics["after"]` says how far the
    data have moved since. The training starts from nothing in any case.

    `parts` replaces the configured split: one array per party with `TRAIN`, `VALID` or `TEST` for each rating. `party` is a
    subclass of the protocol's party; it cannot be combined with `out`, because a run folder does not record the class.
    """
    if config is None:
        config = Config.preset("paper")
    if not isinstance(config, Config):
        raise ConfigError('config must be a Config, for example Config.preset("paper", epochs=20)')
    check_parties(parties)
    config = config.with_code().for_parties(len(parties)).for_data(*count_data(parties))
    folder = Path(out) if out is not None else None
    if folder is not None and party is not Party:
        raise ConfigError("a run folder does not record a subclass of Party; leave out `out`")
    replaced = folder is not None and holds_run(folder, overwrite)
    earlier = Path(after) if after is not None else None
    forgotten = read_forgotten_users(earlier, folder)
    parties, parts = _leave_out(parties, parts, forgotten)
    before = None if earlier is None else read_before(earlier, parties)
    prepared = prepare(parties, config, usable_device(device), parts)
    loops = _make_loops(prepared, config, folder, party=party)
    if folder is None:
        return _run_to_end(loops, watch, stop, before)
    with lock_folder(folder):
        if replaced:
            empty_run(folder)
        if before is not None:
            write_before(folder, before)
        if forgotten.hashes:
            forgotten.write(folder / FORGOTTEN)
        begin_folder(folder, config, parties, [each.parts for each in prepared])
        _begin_folders(loops)
        return _run_to_end(loops, watch, stop, before)


def resume(
    out: str | Path,
    *,
    device: str | torch.device = "cpu",
    watch: Watcher | None = None,
    stop: Stop = never,
) -> Run:
    """Resume an interrupted run from its last checkpoint; the result is the same as without the interruption."""
    folder = Path(out)
    if not (folder / "config.toml").is_file():
        raise RunError(f"{folder} holds no run to resume; start one with {option('out', str(folder))}")
    if (folder / "metrics.json").is_file():
        return Run.load(folder, added=False)
    with lock_folder(folder):
        return _resume(folder, device=device, watch=watch, stop=stop)


def _resume(folder: Path, *, device: str | torch.device, watch: Watcher | None, stop: Stop) -> Run:
    config = load_config(folder / "config.toml")
    other = describe_code_change(config)
    if other is not None:
        raise RunError(
            f"{folder} was begun with {other}; install the earlier version to resume, or train again with {option('overwrite', True)}"
        )
    parties, parts = read_party_tables(folder / "parties")
    prepared = prepare(parties, config, usable_device(device), parts)
    loops = _make_loops(prepared, config, folder)
    _begin_folders(loops)
    for loop in loops:
        loop.restore()
    return _run_to_end(loops, watch, stop, recorded_before(folder))


def _leave_out(
    parties: Sequence[PartyData], parts: Sequence[NDArray[np.int8]] | None, forgotten: ForgottenUsers
) -> tuple[Sequence[PartyData], Sequence[NDArray[np.int8]] | None]:
    """Return the parties and the parts of their ratings without users who were forgotten before."""
    gone = forgotten.find(parties[0].ratings.user_ids, federated=False)
    if not gone.any():
        return parties, parts
    if parts is not None:
        parts = [part[~gone[party.ratings.user]] for party, part in zip(parties, parts, strict=True)]
    note = f"{format_count(int(gone.sum()), 'forgotten user')}: left out"
    tables = [party.ratings.select_users(~gone).with_notes(note) for party in parties]
    return [PartyData(party.name, table) for party, table in zip(parties, tables, strict=True)], parts


def _make_loops(
    prepared: Sequence[Prepared],
    config: Config,
    folder: Path | None,
    *,
    party: type[Party] = Party,
) -> list[TrainingLoop]:
    """Return the training loops of a run: the configured one and, if the configuration asks for it, one for lists.

    Lists are not trained if a party has no liked rating to learn from.
    """
    loops = [TrainingLoop(prepared, config, folder=folder, party=party)]
    if config.trains_lists and all(len(liked(p.train, p.party.ratings.scale)) for p in prepared):
        own = None if folder is None else folder / LISTS
        loops.append(
            TrainingLoop(
                prepared,
                config.for_lists(),
                folder=own,
                party=party,
            )
        )
    return loops


def _begin_folders(loops: Sequence[TrainingLoop]) -> None:
    """Create the folder and the history of every training that has none yet."""
    for loop in loops:
        if loop.folder is not None and not (loop.folder / "history.jsonl").is_file():
            make_folder(loop.folder)
            write_history(loop.folder, [])


def _run_to_end(
    loops: Sequence[TrainingLoop], watch: Watcher | None, stop: Stop, before: dict[str, Any] | None
) -> Run:
    """Run all training loops, let every party choose its mixtures, and return the run with its metrics."""
    folder = loops[0].folder
    trained = [loop.run(watch, stop) for loop in loops]
    try:
        runs = [_gated_run(loop, each, watch, stop) for loop, each in zip(loops, trained, strict=True)]
    except Interrupted:
        raise Interrupted(
            "the federation is trained, but the parties' own models are not", resume_hint(folder)
        ) from None
    run = runs[0]
    if before is not None:
        run.metrics["after"] = before
    if len(runs) > 1:
        run.add_lists(runs[1])
    if folder is not None:
        run.complete_folder(folder)
    return run


def _gated_run(loop: TrainingLoop, trained: Trained, watch: Watcher | None, stop: Stop) -> Run:
    """Return the run of one finished loop; with a gate, each party serves its mixture."""
    config = loop.config
    models = trained.models
    gated = None
    if config.training.gate:
        gated = gate_parties(loop.prepared, models, trained.public, config, watch=watch, stop=stop)
        models = [each.served.model for each in gated]
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
            rows=first.exchange.rows,
            protected=first.exchange.protected,
            validations=len(trained.history),
            randomness=SIMULATED,
            parties=[each.data for each in loop.runtime.parties.values()],
        ),
        digest=parameters_digest(trained.public),
        gates=[each.weights for each in gated] if gated else None,
        federated=trained.models if gated else None,
    )
    return Run(
        config,
        [each.party for each in loop.prepared],
        [each.parts for each in loop.prepared],
        models,
        metrics,
        trained.history,
        trained.ledger,
        trained.public,
        device_of(loop.prepared),
        alone=[each.alone.model for each in gated] if gated else None,
    )
