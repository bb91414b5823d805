"""`verfedgnn party` and `verfedgnn align`: an organisation's own side of a federation."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verfedgnn.cli.output import Output, program
from verfedgnn.cli.service_options import (
    Every,
    FederationFile,
    KeyFile,
    LogFormat,
    ServiceThreads,
    Status,
    begin,
    connected,
    make_watch,
    member,
)
from verfedgnn.cli.shared_options import DATA, RUN, AsJson, Device, Quiet
from verfedgnn.cli.signals import Halt
from verfedgnn.cli.source_options import reads_ratings
from verfedgnn.cli.tables import run_table
from verfedgnn.core.errors import ConfigError

if TYPE_CHECKING:
    from verfedgnn.data import Ratings
    from verfedgnn.data.read_options import Reading
    from verfedgnn.federation.coordinator_link import CoordinatorLink
    from verfedgnn.federation.identity import MemberIdentity
    from verfedgnn.federation.party_store import PartyStore
    from verfedgnn.privacy.id_matching import Each
    from verfedgnn.runs.run import Run

RatingsFile = Annotated[
    str | None,
    typer.Option(
        "--ratings", help="Your ratings: a file, a folder or postgresql://...", rich_help_panel=DATA
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        help="Your run folder; what is there is continued. Unset: run, beside the key.", rich_help_panel=RUN
    ),
]
Processes = Annotated[
    int, typer.Option(help="Processes that align users by ecdh; 0: one per core.", min=0, rich_help_panel=RUN)
]


@reads_ratings
def party(
    *,
    federation: FederationFile,
    ratings: RatingsFile = None,
    key: KeyFile = None,
    out: Out = None,
    reading: Reading,
    status: Status = None,
    checkpoint_every: Every = 1,
    device: Device = "cpu",
    threads: ServiceThreads = 1,
    processes: Processes = 0,
    log: LogFormat = "text",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run your side of a federation: align users, train with the others, end with a model of your own.

    After Ctrl-C, SIGTERM or a kill the same command goes on; `--json` prints the content of metrics.json.
    """
    from verfedgnn.core.files import holding, writable
    from verfedgnn.federation.coordinator_link import CoordinatorLink
    from verfedgnn.federation.event_log import log_event, log_warning
    from verfedgnn.federation.party_service import PartyService, Realign, choose_gate
    from verfedgnn.federation.party_store import PartyStore
    from verfedgnn.privacy.id_matching import workers
    from verfedgnn.runs.run import Run

    begin(log, quiet, threads)
    output = Output(quiet=quiet, as_json=as_json)
    identity = member(federation, key)
    store = PartyStore(out or identity.key_file.parent / "run", identity)
    if store.is_finished:
        log_event("this run is finished already", run=str(store.folder))
        if store.needs_gate:
            choose_gate(store.folder)
        _show(Run.load(store.folder), store.folder, output)
        return
    writable(store.folder)
    table = None if store.is_aligned else ratings_of_party(ratings, reading)
    if store.is_aligned and ratings is not None:
        log_event(
            "going on with the ratings stored when users were aligned; --ratings is not read again",
            run=str(store.folder),
        )
    each_of = workers(processes or os.cpu_count() or 1)
    with Halt(quiet=True) as halt, holding(store.folder), connected(identity) as transport, each_of as each:
        watch = make_watch(store.folder, status)
        link = CoordinatorLink(identity, transport, halt.asked)
        while True:
            if not store.is_aligned:
                table = table or ratings_of_party(ratings, reading)
                _align(identity, store, link, table, each)
            try:
                service = PartyService(
                    identity, store, link, watch, checkpoint_every=checkpoint_every, device=device
                )
                run = service.run()
                break
            except Realign:
                log_warning("another party came without aligned users: aligning again")
                store.clear()
        watch.close()
    _show(run, store.folder, output)


@reads_ratings
def align(
    *,
    federation: FederationFile,
    ratings: RatingsFile = None,
    key: KeyFile = None,
    out: Out = None,
    reading: Reading,
    processes: Processes = 0,
    log: LogFormat = "text",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Find the users all parties have in common, without exchanging lists of users; `party` does this by itself if need be."""
    from verfedgnn.core.files import holding, writable
    from verfedgnn.federation.coordinator_link import CoordinatorLink
    from verfedgnn.federation.party_store import PartyStore
    from verfedgnn.privacy.id_matching import workers

    begin(log, quiet, 1)
    identity = member(federation, key)
    store = PartyStore(out or identity.key_file.parent / "run", identity)
    if store.has_training:
        raise ConfigError(
            f"{store.folder} holds a training with aligned users; choose another --out to align anew"
        )
    writable(store.folder)
    table = ratings_of_party(ratings, reading)
    each_of = workers(processes or os.cpu_count() or 1)
    with Halt(quiet=True) as halt, holding(store.folder), connected(identity) as transport, each_of as each:
        users = _align(identity, store, CoordinatorLink(identity, transport, halt.asked), table, each)
    found = {"users": users, "run": store.folder}
    Output(quiet=quiet, as_json=as_json).result(found, f"{users:,} common users, stored in {store.folder}")


def _align(
    identity: MemberIdentity, store: PartyStore, link: CoordinatorLink, table: Ratings, each: Each
) -> int:
    import torch

    from verfedgnn.federation.party_alignment import align as align_users
    from verfedgnn.runs.prepared_data import prepare

    data, name = align_users(table, identity, link, each)
    (prepared,) = prepare([data], identity.agreement.config, torch.device("cpu"))
    store.save_alignment(prepared, name)
    return data.ratings.n_users


def ratings_of_party(ratings: str | None, reading: Reading) -> Ratings:
    """What stands behind --ratings."""
    from verfedgnn.data import read_ratings
    from verfedgnn.data.table_sources import table_stem

    if ratings is None:
        raise ConfigError("give your ratings with --ratings FILE")
    name = table_stem(ratings)
    return read_ratings(ratings, **reading.for_each([name])[name])


def _show(run: Run, folder: Path, output: Output) -> None:
    output.result(run.metrics, run_table(run.metrics))
    output.remark(f"next: {program()} recommend {folder} --user ID")
