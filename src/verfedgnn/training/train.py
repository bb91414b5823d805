"""Train a federation on one machine, and resume a training that was interrupted."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.config import Config, load_config
from verfedgnn.core.errors import ConfigError, RunError, RunWarning
from verfedgnn.core.files import check_links, lock_folder, write_bytes, writing
from verfedgnn.core.option_names import option
from verfedgnn.data import PartyData, check_parties
from verfedgnn.evaluation.verdict import judged_tables
from verfedgnn.protocol.party import Party
from verfedgnn.runs.forget_record import read_forgotten_users
from verfedgnn.runs.metrics_file import Trained
from verfedgnn.runs.party_tables import read_party_tables
from verfedgnn.runs.prepared_data import Prepared, choose_config, leave_out_twins, prepare
from verfedgnn.runs.run import Run, begin_folder, describe_code_change, suspect_files
from verfedgnn.runs.run_folder import FINAL, FORGOTTEN, LISTS, empty_run, holds_run
from verfedgnn.training.gate import make_run
from verfedgnn.training.loop import TrainingLoop, usable_device
from verfedgnn.training.own_models import all_like
from verfedgnn.training.progress import Progress, Stop, Watcher, never


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

    `after` is the folder of the run before this one. Users whom it has forgotten are left out, and a warning tells of a file with
    mostly new items. The training starts from nothing in any case.

    `parts` replaces the configured split: one array per party with `TRAIN`, `VALID` or `TEST` for each rating. `party` is a
    subclass of the protocol's party; it cannot be combined with `out`, because a run folder does not record the class.
    """
    if config is None:
        config = Config.preset("paper")
    if not isinstance(config, Config):
        raise ConfigError('config must be a Config, for example Config.preset("paper", epochs=20)')
    check_parties(parties)
    config = choose_config(parties, config)
    folder = Path(out) if out is not None else None
    if folder is not None and party is not Party:
        raise ConfigError("a run folder does not record a subclass of Party; leave out `out`")
    replaced = folder is not None and holds_run(folder, overwrite)
    earlier = Path(after) if after is not None else None
    forgotten = read_forgotten_users(earlier, folder)
    parties, stay, gone = forgotten.leave_out(parties)
    if parts is not None and gone:
        parts = [part[which] for part, which in zip(parts, stay, strict=True)]
    for suspicion in suspect_files(earlier, parties) if earlier is not None else ():
        warnings.warn(suspicion, RunWarning, stacklevel=2)
    prepared = prepare(parties, config, usable_device(device), parts)
    if config.split.kind == "random" and parts is None:
        prepared = leave_out_twins(prepared, config)
    if folder is None:
        run = _train_and_judge(prepared, config, None, watch, stop, party)
        run.folder = earlier and earlier.resolve()
        return run
    with lock_folder(folder):
        if read_forgotten_users(earlier, folder) != forgotten:
            raise RunError(f"users were forgotten in {earlier or folder} meanwhile; repeat the command")
        if replaced:
            empty_run(folder)
        if forgotten.hashes:
            forgotten.write(folder / FORGOTTEN)
        begin_folder(folder, config, parties, [data.parts for data in prepared])
        return _train_and_judge(prepared, config, folder, watch, stop)


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
    check_links(folder)
    config = load_config(folder / "config.toml")
    final = (folder / FINAL / "metrics.json").is_file() or not config.trains_final
    if (folder / "metrics.json").is_file() and (final or not (folder / "checkpoint").is_dir()):
        return Run.load(folder, added=False)
    with lock_folder(folder):
        other = describe_code_change(config)
        if other is not None:
            remedy = f"install the earlier version to resume, or train again with {option('overwrite', True)}"
            raise RunError(f"{folder} was begun with {other}; {remedy}")
        parties, parts = read_party_tables(folder / "parties")
        prepared = prepare(parties, config, usable_device(device), parts)
        return _train_and_judge(prepared, config, folder, watch, stop)


def train_final(
    out: str | Path,
    *,
    device: str | torch.device = "cpu",
    watch: Watcher | None = None,
    stop: Stop = never,
) -> Run:
    """Train the model of all ratings of a run that was only judged; the result is that of both trainings in one go.

    Until it is finished, the judged run stays as it is. An interrupted training is continued by `resume`.
    """
    folder = Path(out)
    config = Run.load(folder, added=False).judged.config
    whole = config.with_values({"final": True})
    if not whole.trains_final:
        cause = f"the preset of {folder} has no gate, so its only model is served"
        raise ConfigError(f"{cause}; train with preset best")
    if (folder / FINAL / "metrics.json").is_file():
        raise ConfigError(f"{folder} has its model of all ratings already")
    if not (folder / "checkpoint").is_dir() or any((folder / "added").glob("*")):
        raise RunError(f"{folder} has changed since its training, by `forget` or by new items; train again")
    if not config.final:
        with lock_folder(folder), writing(folder):
            write_bytes(folder / "config.toml", whole.to_toml().encode())
    return resume(folder, device=device, watch=watch, stop=stop)


def _train_and_judge(
    prepared: Sequence[Prepared],
    config: Config,
    folder: Path | None,
    watch: Watcher | None,
    stop: Stop,
    party: type[Party] = Party,
) -> Run:
    """Train and judge, then train on all ratings what is served, and return the run with its metrics.

    Trainings that have begun in the folder continue from their checkpoints.
    """

    def run(
        data: Sequence[Prepared], config: Config, folder: Path | None, starts: Sequence[Tensor | None]
    ) -> list[Trained]:
        """Run the configured training and, if the configuration asks for it and there are likes, one for lists."""
        trainings = [(config, folder)]
        if len(starts) > 1 and config.federates_lists and all_like(data):
            trainings.append((config.for_lists(), None if folder is None else folder / LISTS))
        return [
            TrainingLoop(data, config, folder=folder, party=party, start=start).run(watch, stop)
            for (config, folder), start in zip(trainings, starts, strict=False)
        ]

    judged = run(prepared, config, folder, [None, None])
    final: list[Trained] = []
    if config.trains_final and config.model.solved:
        whole = [data.with_everything(config) for data in prepared]
        inside = None if folder is None else folder / FINAL
        final = run(whole, config.for_final(), inside, [result.public for result in judged])
    return make_run(prepared, config, judged, final, folder=folder, watch=watch, stop=stop)


def compare_partners(run: Run, *, watch: Watcher, stop: Stop) -> list[dict[str, Any]]:
    """Train the judged federation again without each party in turn, on the same parts of the ratings.

    Return for each party, each partner and each table of the lift the gain with all partners and without this one, with the words.
    In a federation, sums with and without a party would reveal that party.
    """
    judged = run.judged
    if len(judged.parties) < 3 or "lift" not in run.metrics:
        raise ConfigError(
            "--partners compares federations without one party; it needs three parties or more, and preset best"
        )
    config = judged.config.with_values({"final": False})
    rows = []
    for left_out, partner in enumerate(judged.parties):

        def named(event: Progress, name: str = partner.name) -> None:
            watch(replace(event, label=f"without {name}, {event.label}"))

        others = [p for p in range(len(judged.parties)) if p != left_out]
        tables = [judged.parties[p].ratings for p in others]
        here = np.unique(np.concatenate([table.user for table in tables]))
        left = [
            PartyData(judged.parties[p].name, judged.parties[p].ratings.select_users(here)) for p in others
        ]
        parts = [judged.parts[p] for p in others]
        without = train(left, config, parts=parts, watch=named, stop=stop)
        lifts = (judged_tables(lift) for lift in (run.metrics["lift"], without.metrics["lift"]))
        for (customers, table), (_, less) in zip(*lifts, strict=True):
            full = {row["name"]: row for row in table["parties"]}
            about = {"partner": partner.name, "customers": customers, "metric": table["metric"]}
            rows += [
                {"party": row["name"], **about, "with": full[row["name"]], "without": row}
                for row in less["parties"]
            ]
    return rows
