"""`verfedgnn coordinator`: the side that adds up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from verfedgnn.cli.halt import Halt
from verfedgnn.cli.options import AsJson, Device, Quiet
from verfedgnn.cli.output import Output
from verfedgnn.cli.service import (
    COORDINATOR_KEY,
    Every,
    LogFormat,
    ServiceThreads,
    Status,
    address,
    begin,
    connected,
    make_watch,
)
from verfedgnn.errors import ConfigError


def coordinator(
    folder: Annotated[Path, typer.Argument(help="The folder that `federation init` made.")],
    out: Annotated[Path | None, typer.Option(help="The run folder; what is there is continued. Unset: run, in FOLDER.")] = None,
    listen: Annotated[str | None, typer.Option(help="HOST:PORT to listen on; unset: the agreed port, all addresses.")] = None,
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
    from verfedgnn.federation.agreement import FILE, load_agreement
    from verfedgnn.federation.coordinator import CoordinatorService
    from verfedgnn.federation.identity import Identity
    from verfedgnn.federation.log import tell
    from verfedgnn.files import holding

    begin(log, quiet, threads)
    agreement = load_agreement(folder / FILE)
    key = folder / COORDINATOR_KEY
    if not key.is_file():
        raise ConfigError(f"{folder} holds no {COORDINATOR_KEY}; give the folder that `verfedgnn federation init` made")
    identity = Identity(agreement, key)
    if not identity.is_coordinator:
        raise ConfigError(f"{key} is not the coordinator's key of {FILE}; make a new one with `verfedgnn federation renew`")
    if len(agreement.parties) < 2:
        raise ConfigError("the roster has fewer than two parties; approve their requests with `verfedgnn federation approve`")
    run, here = out or folder / "run", address(listen, "--listen") or ("0.0.0.0", agreement.port)
    with Halt(quiet=True) as halt, holding(run), connected(identity, here) as transport:
        watch = make_watch(run, status, tensorboard)
        service = CoordinatorService(agreement, transport, run, watch, checkpoint_every=checkpoint_every, device=device)
        tell("listening", address=f"{here[0]}:{here[1]}")
        service.run(halt.asked)
        watch.close()
    metrics = json.loads((run / "metrics.json").read_text("utf-8"))
    Output(quiet=quiet, as_json=as_json).result(metrics, f"public parameters: {run}/model; each party has its own model")
