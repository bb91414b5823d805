"""`verfedgnn coordinator`: the side of a federation that adds up the parties' contributions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from verfedgnn.cli.next_step import show_next
from verfedgnn.cli.output import Output
from verfedgnn.cli.service_options import (
    LogFormat,
    ServiceThreads,
    ServiceWorkers,
    Status,
    make_publisher,
    parse_address,
    prepare_service,
)
from verfedgnn.cli.shared_options import AsJson, Device, Quiet, Track
from verfedgnn.cli.signals import Halt


def coordinator(
    folder: Annotated[Path, typer.Argument(help="The folder that `federation init` created.")],
    out: Annotated[
        Path | None, typer.Option(help="The run folder, resumed if it exists. Default: run, in FOLDER.")
    ] = None,
    listen: Annotated[
        str | None, typer.Option(help="HOST:PORT to listen on. Default: the agreed port on all addresses.")
    ] = None,
    status: Status = None,
    track: Track = "none",
    from_: Annotated[
        Path | None,
        typer.Option(
            "--from", help="Continue from this finished run folder of yours; the parties do the same."
        ),
    ] = None,
    device: Device = "cpu",
    threads: ServiceThreads = 1,
    workers: ServiceWorkers = 1,
    log: LogFormat = "text",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run the coordinator of a federation: wait for the parties, align their users, train, and hand out the result.

    After Ctrl-C, SIGTERM or a kill, the same command resumes. `--json` prints the content of metrics.json.
    """
    from verfedgnn.core.files import lock_folder
    from verfedgnn.federation.connect import connected
    from verfedgnn.federation.coordinator_service import CoordinatorService
    from verfedgnn.federation.coordinator_worker import run_coordinator_worker
    from verfedgnn.federation.event_log import log_event
    from verfedgnn.federation.identity import load_coordinator
    from verfedgnn.federation.worker_processes import (
        WorkerProcesses,
        count_workers,
        work_for_first,
        worker_rank,
    )
    from verfedgnn.runs.tracking.tracker import tracked

    prepare_service(log, quiet, threads)
    identity = load_coordinator(folder)
    agreement = identity.agreement
    run = out or folder / "run"
    if worker_rank():
        work_for_first(lambda group: run_coordinator_worker(run, agreement, group, device))
        return
    address = parse_address(listen, "--listen") or ("0.0.0.0", agreement.port)
    settings = agreement.training_config.to_toml()
    with (
        Halt(quiet=True) as halt,
        lock_folder(run),
        tracked(track, run, settings, resumed=(run / "checkpoint").exists()) as log_to,
        connected(identity, address) as transport,
        WorkerProcesses(count_workers(workers)) as processes,
    ):
        publisher = make_publisher(run, status, log_to)
        service = CoordinatorService(
            identity,
            transport,
            run,
            publisher,
            device=device,
            start_from=from_,
            workers=processes.group,
        )
        log_event("listening", address=f"{address[0]}:{address[1]}")
        service.run(halt.asked)
        publisher.close()
        metrics = json.loads((run / "metrics.json").read_text("utf-8"))
        log_to.result(run, metrics)
    output = Output(quiet=quiet, as_json=as_json)
    output.result(metrics, f"The public parameters are in {run}/model. Each party keeps its own model.")
    sentence = (
        "The training is finished. Transcripts of the members show whether all of them received the same."
    )
    show_next(output, [sentence], ["federation", "verify", str(run), "--federation", str(folder)])
