"""A party's run from the results of its trainings: it chooses the gates and completes the run folder.

The coordinator is not needed for this, and nobody waits for it. After an interruption it starts again from the stored results.
"""

from __future__ import annotations

import torch

from verfedgnn.federation.event_log import log_event
from verfedgnn.federation.party_store import FIRST_ROUNDS, PartyStore, StageResult
from verfedgnn.federation.stages import Stage
from verfedgnn.runs.metrics_file import build_metrics
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.prepared_data import Prepared
from verfedgnn.runs.run import Run, read_history
from verfedgnn.runs.start_from import recorded_ancestor
from verfedgnn.training.party_gate import gate_parties


def complete_run(store: PartyStore, device: str = "cpu") -> Run:
    """Choose the gate of every training, write the run folder and return the run."""
    chosen = torch.device(device)
    prepared, _ = store.load(chosen)
    run: Run | None = None
    for stage in store.stages:
        result = store.read_result(stage)
        assert result is not None, "all trainings have finished"
        if result.is_skipped:
            continue
        made = _make_run(store, stage, result, prepared, chosen)
        if run is None:
            run = made
        else:
            run.add_lists(made)
    assert run is not None
    ancestor = recorded_ancestor(store.folder)
    if ancestor is not None:
        run.metrics["from"] = ancestor
    run.complete_folder(store.folder)
    store.remove_results()
    return run


def _make_run(
    store: PartyStore, stage: Stage, result: StageResult, prepared: Prepared, device: torch.device
) -> Run:
    """Return the run of one training, with the party's mixture if the configuration has a gate."""
    arrays = {key: value.to(device) for key, value in result.arrays.items()}
    public = arrays.pop("public")
    share = arrays.pop("others_means", None)
    first = {key: arrays.pop(key) for key in list(arrays) if key.startswith(f"{FIRST_ROUNDS}.")}
    first_rounds = (
        PartyModel.from_arrays({key.partition(".")[2]: value for key, value in first.items()})
        if first
        else None
    )
    model = PartyModel.from_arrays(arrays)
    figures = result.figures
    history = read_history(stage.folder(store.folder))
    gates = None
    alone = None
    federated = None
    if stage.config.training.gate:
        log_event("training alone to choose the gate", stage=stage.name)
        (gated,) = gate_parties([prepared], [model], [share], stage.config, first_rounds=[first_rounds])
        log_event("gate chosen", stage=stage.name, weights=str(gated.served.known))
        federated = [model]
        model = gated.served.model
        alone = [gated.alone.model]
        gates = [gated.weights]
    metrics = build_metrics(
        [prepared],
        [model],
        stage.config,
        result.ledger,
        rounds=result.rounds,
        best_round=figures["best_round"],
        seconds=figures["seconds"],
        privacy=figures["privacy"],
        digest=figures["digest"],
        gates=gates,
        federated=federated,
    )
    metrics["all_ratings"] = figures["ratings"]
    return Run(
        stage.config,
        [prepared.party],
        [prepared.parts],
        [model],
        metrics,
        history,
        result.ledger,
        public,
        device,
        alone=alone,
        others_means=[share],
    )
