"""`verfedgnn party` and `verfedgnn align`: one organisation's side of a federation."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verfedgnn.cli.next_step import show_next, show_run_findings
from verfedgnn.cli.output import Output
from verfedgnn.cli.service_options import (
    Every,
    FederationFile,
    KeyFile,
    LogFormat,
    ServiceThreads,
    ServiceWorkers,
    Status,
    make_publisher,
    prepare_service,
)
from verfedgnn.cli.shared_options import DATA, RUN, AsJson, Device, Quiet, Track
from verfedgnn.cli.signals import Halt
from verfedgnn.cli.source_options import reads_ratings
from verfedgnn.cli.tables import run_table
from verfedgnn.core.errors import ConfigError

if TYPE_CHECKING:
    from verfedgnn.config import Config
    from verfedgnn.data import Ratings
    from verfedgnn.data.read_options import ReadOptions
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
        help="Your run folder, resumed if it exists. Default: run, beside the key.", rich_help_panel=RUN
    ),
]
Processes = Annotated[
    int,
    typer.Option(
        help="Processes for aligning users by ecdh; 0 means one per core.", min=0, rich_help_panel=RUN
    ),
]
PadUsers = Annotated[
    int,
    typer.Option(
        help="Announce at least this many users, random ones among them, to hide how many you have.",
        min=0,
        rich_help_panel=RUN,
    ),
]
RowsFrom = Annotated[
    Path | None,
    typer.Option(
        help="An earlier run folder of yours whose users keep their rows. Use it at all parties.",
        rich_help_panel=RUN,
    ),
]
StartFrom = Annotated[
    Path | None,
    typer.Option(
        "--from",
        help="Continue from this finished run folder of yours: users keep their rows, users and items their parameters.",
        rich_help_panel=RUN,
    ),
]


@reads_ratings
def party(
    *,
    federation: FederationFile,
    ratings: RatingsFile = None,
    key: KeyFile = None,
    out: Out = None,
    reading: ReadOptions,
    status: Status = None,
    track: Track = "none",
    checkpoint_every: Every = 1,
    device: Device = "cpu",
    threads: ServiceThreads = 1,
    workers: ServiceWorkers = 1,
    processes: Processes = 0,
    pad_users: PadUsers = 0,
    rows_from: RowsFrom = None,
    from_: StartFrom = None,
    log: LogFormat = "text",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run your side of a federation: align users, train with the others, and keep your own model.

    After Ctrl-C, SIGTERM or a kill, the same command resumes. `--json` prints the content of metrics.json.
    """
    from verfedgnn.core.files import check_writable, lock_folder
    from verfedgnn.federation.connect import connected
    from verfedgnn.federation.coordinator_link import CoordinatorLink
    from verfedgnn.federation.event_log import log_event
    from verfedgnn.federation.identity import load_party
    from verfedgnn.federation.party_session import load_finished, run_party
    from verfedgnn.federation.party_store import PartyStore
    from verfedgnn.federation.party_worker import run_worker
    from verfedgnn.federation.transcript import Transcript
    from verfedgnn.federation.worker_processes import (
        WorkerProcesses,
        count_workers,
        work_for_first,
        worker_rank,
    )
    from verfedgnn.privacy.id_matching import workers as matching_processes
    from verfedgnn.reports.run_report import report_to_track
    from verfedgnn.runs.tracking.tracker import tracked

    prepare_service(log, quiet, threads)
    output = Output(quiet=quiet, as_json=as_json)
    identity = load_party(federation, key)
    store = PartyStore(out or identity.key_file.parent / "run", identity)
    if worker_rank():
        work_for_first(lambda workers: run_worker(store, workers, device))
        return
    processes_of_party = WorkerProcesses(count_workers(workers))
    if store.is_trained:
        _show(load_finished(store, device), store.folder, output)
        return
    check_writable(store.folder)
    read = cache(lambda: read_own_ratings(ratings, reading, identity.agreement.training_config))
    if not store.is_aligned:
        read()  # reports a mistake in the ratings before the first connection
    elif ratings is not None:
        log_event("using the ratings stored at alignment, --ratings is not read", run=str(store.folder))
    known = None if rows_from is None else PartyStore.read_rows(rows_from)
    pool = matching_processes(processes or os.cpu_count() or 1)
    settings = identity.agreement.training_config.to_toml()
    with (
        Halt(quiet=True) as halt,
        lock_folder(store.folder),
        tracked(track, store.folder, settings, resumed=store.is_aligned) as log_to,
        connected(identity) as transport,
        pool as each,
        processes_of_party,
    ):
        publisher = make_publisher(store.folder, status, log_to)
        link = CoordinatorLink(identity, transport, halt.asked, Transcript(store.folder, identity))
        run = run_party(
            store,
            link,
            publisher,
            read,
            each=each,
            known=known,
            pad_to=pad_users,
            checkpoint_every=checkpoint_every,
            device=device,
            start_from=from_,
            workers=lambda: processes_of_party.group,
        )
        publisher.close()
        with report_to_track(run, store.folder, track) as files:
            log_to.result(store.folder, run.metrics, files)
    _show(run, store.folder, output)


@reads_ratings
def align(
    *,
    federation: FederationFile,
    ratings: RatingsFile = None,
    key: KeyFile = None,
    out: Out = None,
    reading: ReadOptions,
    processes: Processes = 0,
    pad_users: PadUsers = 0,
    rows_from: RowsFrom = None,
    log: LogFormat = "text",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Align your users with those of the other parties, without exchanging lists; `party` does this if necessary."""
    from verfedgnn.core.files import check_writable, lock_folder
    from verfedgnn.federation.connect import connected
    from verfedgnn.federation.coordinator_link import CoordinatorLink
    from verfedgnn.federation.identity import load_party
    from verfedgnn.federation.party_session import align_party
    from verfedgnn.federation.party_store import PartyStore
    from verfedgnn.federation.transcript import Transcript
    from verfedgnn.privacy.id_matching import workers

    prepare_service(log, quiet, 1)
    identity = load_party(federation, key)
    store = PartyStore(out or identity.key_file.parent / "run", identity)
    if store.has_training:
        raise ConfigError(f"{store.folder} holds a training; choose another --out to align users again")
    check_writable(store.folder)
    table = read_own_ratings(ratings, reading, identity.agreement.training_config)
    known = None if rows_from is None else PartyStore.read_rows(rows_from)
    pool = workers(processes or os.cpu_count() or 1)
    with Halt(quiet=True) as halt, lock_folder(store.folder), connected(identity) as transport, pool as each:
        link = CoordinatorLink(identity, transport, halt.asked, Transcript(store.folder, identity))
        users = align_party(store, link, table, each, known=known, pad_to=pad_users)
    found = {"users": users, "run": store.folder}
    output = Output(quiet=quiet, as_json=as_json)
    output.result(found, f"{users:,} users in the federation; your aligned ratings are in {store.folder}")
    words = ["party", "--federation", str(federation), *([] if key is None else ["--key", str(key)])]
    words += [] if out is None else ["--out", str(out)]
    sentence = (
        f"{len(table.known_users):,} of the federation's users are yours; the training uses these rows."
    )
    show_next(output, [sentence], words)


def read_own_ratings(ratings: str | None, reading: ReadOptions, config: Config) -> Ratings:
    """Read the --ratings source; raise `ConfigError` if the option is missing, or if `config` needs something declared."""
    from verfedgnn.data import read_ratings
    from verfedgnn.data.table_sources import table_stem
    from verfedgnn.runs.prepared_data import check_declared

    if ratings is None:
        raise ConfigError("--ratings is missing; pass your ratings with --ratings FILE")
    name = table_stem(ratings)
    table = read_ratings(ratings, **reading.for_each([name])[name])
    check_declared(table, config)
    return table


def _show(run: Run, folder: Path, output: Output) -> None:
    output.result(run.metrics, run_table(run.metrics))
    show_run_findings(output, run, folder, None)
