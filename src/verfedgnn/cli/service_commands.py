"""`verfedgnn party`, `align`, `coordinator` and `status`: the members of a federation at work."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from verfedgnn.cli.next_step import show_next, show_run_findings
from verfedgnn.cli.output import Output
from verfedgnn.cli.service_options import (
    Every,
    FederationFile,
    KeyFile,
    LogFormat,
    ServiceThreads,
    Status,
    make_publisher,
    parse_address,
    prepare_service,
)
from verfedgnn.cli.shared_options import DATA, RUN, AsJson, Device, Quiet, Track
from verfedgnn.cli.signals import Halt
from verfedgnn.cli.source_options import reads_ratings
from verfedgnn.cli.tables import run_table
from verfedgnn.core.errors import ConfigError, RunError
from verfedgnn.federation.status import FACTS, describe_process, format_heard, format_value, presence

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
After = Annotated[
    Path | None,
    typer.Option(
        help="Your run before this one: users forgotten in it are left out, and a warning tells of a wrong file.",
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
    processes: Processes = 0,
    pad_users: PadUsers = 0,
    after: After = None,
    log: LogFormat = "text",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run your side of a federation: align users, train with the others, and keep your own model.

    After Ctrl-C, SIGTERM or a kill, the same command resumes. `--json` prints the content of metrics.json.
    """
    from verfedgnn.core.files import check_writable, lock_folder
    from verfedgnn.federation.coordinator_link import CoordinatorLink
    from verfedgnn.federation.event_log import log_event
    from verfedgnn.federation.party_session import load_finished, run_party
    from verfedgnn.federation.party_store import PartyStore
    from verfedgnn.federation.roster import load_party
    from verfedgnn.federation.transcript import Transcript
    from verfedgnn.federation.websocket_transport import connected
    from verfedgnn.privacy.id_matching import workers
    from verfedgnn.reports.run_report import report_to_track
    from verfedgnn.runs.tracking.tracker import tracked

    prepare_service(log, quiet, threads)
    output = Output(quiet=quiet, as_json=as_json)
    identity = load_party(federation, key)
    store = PartyStore(out or identity.key_file.parent / "run", identity)
    if store.is_trained:
        _show(load_finished(store, device), store.folder, output)
        return
    check_writable(store.folder)
    read = cache(lambda: read_own_ratings(ratings, reading, identity.agreement.config))
    if not store.is_aligned:
        read()  # reports a mistake in the ratings before the first connection
    elif ratings is not None:
        log_event("using the ratings stored at alignment, --ratings is not read", run=str(store.folder))
    pool = workers(processes or os.cpu_count() or 1)
    settings = identity.agreement.config.to_toml()
    with (
        Halt(quiet=True) as halt,
        lock_folder(store.folder),
        tracked(track, store.folder, settings, resumed=store.is_aligned) as log_to,
        connected(identity) as transport,
        make_publisher(store.folder, status, log_to) as publisher,
        pool as each,
    ):
        transcript = Transcript(store.folder, identity)
        link = CoordinatorLink(identity, transport, halt.asked, transcript, publisher)
        run = run_party(
            store,
            link,
            read,
            each=each,
            pad_to=pad_users,
            checkpoint_every=checkpoint_every,
            device=device,
            after=after,
        )
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
    log: LogFormat = "text",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Align your users with those of the other parties, without exchanging lists; `party` does this if necessary."""
    from verfedgnn.core.files import check_writable, lock_folder
    from verfedgnn.federation.coordinator_link import CoordinatorLink
    from verfedgnn.federation.party_session import align_party
    from verfedgnn.federation.party_store import PartyStore
    from verfedgnn.federation.roster import load_party
    from verfedgnn.federation.transcript import Transcript
    from verfedgnn.federation.websocket_transport import connected
    from verfedgnn.privacy.id_matching import workers

    prepare_service(log, quiet, 1)
    identity = load_party(federation, key)
    store = PartyStore(out or identity.key_file.parent / "run", identity)
    if store.has_training:
        raise ConfigError(f"{store.folder} holds a training; choose another --out to align users again")
    check_writable(store.folder)
    table = read_own_ratings(ratings, reading, identity.agreement.config)
    pool = workers(processes or os.cpu_count() or 1)
    with (
        Halt(quiet=True) as halt,
        lock_folder(store.folder),
        connected(identity) as transport,
        make_publisher(store.folder, None) as publisher,
        pool as each,
    ):
        transcript = Transcript(store.folder, identity)
        link = CoordinatorLink(identity, transport, halt.asked, transcript, publisher)
        users = align_party(store, link, table, each, pad_to=pad_users)
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
    show_run_findings(output, run, folder)


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
    device: Device = "cpu",
    threads: ServiceThreads = 1,
    log: LogFormat = "text",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run the coordinator of a federation: wait for the parties, align their users, train, and hand out the result.

    After Ctrl-C, SIGTERM or a kill, the same command resumes. `--json` prints the content of metrics.json.
    """
    from verfedgnn.core.files import lock_folder
    from verfedgnn.federation.coordinator_service import CoordinatorService
    from verfedgnn.federation.event_log import log_event
    from verfedgnn.federation.roster import load_coordinator
    from verfedgnn.federation.websocket_transport import connected
    from verfedgnn.runs.tracking.tracker import tracked

    prepare_service(log, quiet, threads)
    identity = load_coordinator(folder)
    agreement = identity.agreement
    run = out or folder / "run"
    address = parse_address(listen, "--listen") or ("0.0.0.0", agreement.port)
    settings = agreement.config.to_toml()
    with (
        Halt(quiet=True) as halt,
        lock_folder(run),
        tracked(track, run, settings, resumed=(run / "checkpoint").exists()) as log_to,
        connected(identity, address) as transport,
        make_publisher(run, status, log_to) as publisher,
    ):
        service = CoordinatorService(identity, transport, run, publisher, device=device)
        log_event("listening", address=f"{address[0]}:{address[1]}")
        service.run(halt.asked)
        metrics = json.loads((run / "metrics.json").read_text("utf-8"))
        log_to.result(run, metrics)
    output = Output(quiet=quiet, as_json=as_json)
    output.result(metrics, f"The public parameters are in {run}/model. Each party keeps its own model.")
    sentence = (
        "The training is finished. Transcripts of the members show whether all of them received the same."
    )
    show_next(output, [sentence], ["federation", "verify", str(run), "--federation", str(folder)])


def status(
    where: Annotated[
        str, typer.Argument(help="A run folder, its parent folder, or http://HOST:PORT of a --status page.")
    ],
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Show the rounds, validation error, parties, bytes and remaining time of a coordinator or party, and who waits for whom."""
    output = Output(quiet=quiet, as_json=as_json)
    found = _fetch(where) if where.startswith(("http://", "https://")) else _read(Path(where))
    table = Table("", "", show_header=False, box=None)
    for label in ("federation", "role", "training"):
        table.add_row(label, format_value(found, label))
    for key, label in FACTS.items():
        table.add_row(label, format_value(found, key))
    parties = Table("party", "", "heard", "MB up", "MB down", "refused")
    for name, about in found.get("parties", {}).items():
        parties.add_row(
            escape(name),
            presence(about),
            format_heard(found, about),
            f"{about['up'] / 1e6:,.1f}",
            f"{about['down'] / 1e6:,.1f}",
            str(about.get("refused", 0)),
        )
    output.result(found, table, parties)
    folder = Path(where)
    served = (
        found.get("state") == "finished" and str(found.get("role")).startswith("party") and folder.is_dir()
    )
    show_next(output, [describe_process(found)], ["serve", where] if served else ["status", where])


def _read(folder: Path) -> dict[str, Any]:
    for place in (folder / "status.json", folder / "run" / "status.json"):
        if place.is_file():
            return dict(json.loads(place.read_text("utf-8")))
    raise RunError(
        f"there is no status in {folder}; pass the run folder of a coordinator or party that has been started"
    )


def _fetch(url: str) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(url.rstrip("/") + "/status.json", timeout=5) as answer:
            return dict(json.loads(answer.read(1 << 20)))
    except (urllib.error.URLError, ValueError, OSError) as error:
        raise RunError(
            f"no status at {url} ({getattr(error, 'reason', error)}); start the member with --status"
        ) from None
