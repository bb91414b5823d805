"""`verfedgnn coordinator`: the side that adds up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from verfedgnn.cli.output import Output
from verfedgnn.cli.service_options import (
    Every,
    LogFormat,
    ServiceThreads,
    Status,
    address,
    begin,
    connected,
    make_watch,
)
from verfedgnn.cli.shared_options import AsJson, Device, Quiet
from verfedgnn.cli.signals import Halt
from verfedgnn.core.errors import ConfigError
from verfedgnn.federation.key_files import COORDINATOR_KEY


def coordinator(
    folder: Annotated[Path, typer.Argument(help="The folder that `federation init` made.")],
    out: Annotated[
        Path | None, typer.Option(help="The run folder; what is there is continued. Unset: run, in FOLDER.")
    ] = None,
    listen: Annotated[
        str | None, typer.Option(help="HOST:PORT to listen on; unset: the agreed port, all addresses.")
    ] = None,
    status: Status = None,
    tensorboard: Annotated[Path | None, typer.Option(help="A folder for TensorBoard's event files.")] = None,
    checkpoint_every: Every = 1,
    device: Device = "cpu",
    threads: ServiceThreads = 1,
    log: LogFormat = "text",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run a federation's coordinator: wait for the parties, align their users, train, hand out the result.

    After Ctrl-C, SIGTERM or a kill the same command goes on; `--json` prints the content of metrics.json.
    """
    from verfedgnn.core.files import holding
    from verfedgnn.federation.agreement import FILE, load_agreement
    from verfedgnn.federation.coordinator_service import CoordinatorService
    from verfedgnn.federation.event_log import log_event
    from verfedgnn.federation.identity import MemberIdentity

    begin(log, quiet, threads)
    agreement = load_agreement(folder / FILE)
    key = folder / COORDINATOR_KEY
    if not key.is_file():
        raise ConfigError(
            f"{folder} holds no {COORDINATOR_KEY}; give the folder that `verfedgnn federation init` made"
        )
    identity = MemberIdentity(agreement, key)
    if not identity.is_coordinator:
        raise ConfigError(
            f"{key} is not the coordinator's key of {FILE}; make a new one with `verfedgnn federation renew`"
        )
    if len(agreement.parties) < 2:
        raise ConfigError(
            "the roster has fewer than two parties; approve their requests with `verfedgnn federation approve`"
        )
    run, here = out or folder / "run", address(listen, "--listen") or ("0.0.0.0", agreement.port)
    with Halt(quiet=True) as halt, holding(run), connected(identity, here) as transport:
        watch = make_watch(run, status, tensorboard)
        service = CoordinatorService(
            agreement, transport, run, watch, checkpoint_every=checkpoint_every, device=device
        )
        log_event("listening", address=f"{here[0]}:{here[1]}")
        service.run(halt.asked)
        watch.close()
    metrics = json.loads((run / "metrics.json").read_text("utf-8"))
    Output(quiet=quiet, as_json=as_json).result(
        metrics, f"public parameters: {run}/model; each party has its own model"
    )
