"""`verfedgnn party`, `coordinator` and `status`: the members of a federation at work."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

import verfedgnn as vf
from verfedgnn.cli.next_step import show_next, show_run_findings
from verfedgnn.cli.output import STANDARD, Output
from verfedgnn.cli.shared_options import FederationFile, Folder, OtherRun, Threads, use_threads
from verfedgnn.cli.signals import Halt
from verfedgnn.cli.tables import run_texts
from verfedgnn.core.connection_table import is_loopback
from verfedgnn.core.errors import ConfigError, RunError
from verfedgnn.core.files import check_links, parsing
from verfedgnn.federation.status import StatusPublisher, describe_process, make_members_tables, make_tables

if TYPE_CHECKING:
    from verfedgnn.data.read_options import ReadOptions
    from verfedgnn.federation.roster import MemberIdentity
    from verfedgnn.federation.transport import Transport


LogFormat = Literal["text", "json"]
LogLevel = Literal["info", "warning", "error"]
StatusAddress = Annotated[str | None, typer.Option(metavar="ADDRESS")]


def party(
    *,
    federation: FederationFile,
    ratings: Annotated[str | None, typer.Option(metavar="FILE")] = None,
    key: Path | None = None,
    out: Folder = None,
    reading: ReadOptions,
    status: StatusAddress = None,
    device: str = "cpu",
    threads: Threads = 1,
    pad_users: Annotated[int, typer.Option(min=0)] = 0,
    after: OtherRun = None,
    share_verdict: bool = False,
    align_only: bool = False,
    check: bool = False,
    log: LogFormat = "text",
    log_level: LogLevel = "info",
    output: Output = STANDARD,
) -> None:
    """Run your side of a federation: align users, train with the others, and keep your own model.

    After Ctrl-C, SIGTERM or a kill, the same command resumes. `--json` prints the content of metrics.json.

    Federation:
        key: Your private key. Default: key.pem beside federation.toml.
    Data:
        ratings: Your ratings: a file or a folder.
    Run:
        out: Your run folder, resumed if it exists. Default: run, beside the key.
        pad_users: Announce at least this many users, random ones among them, to hide how many you have.
        after: Your run before this one: users forgotten in it are left out, and a warning tells of a wrong file.
        share_verdict: Show all members the verdict on the run named by --after: one word, and what known customers
            gain, rounded.
        align_only: Align users and stop. The same command without it trains with the result.
        check: Only check your side before the day: certificates, connection, clock, software, disk, memory and data.
            The exit code is 1 if something would keep you from training.
    """
    from verfedgnn.core.files import check_writable
    from verfedgnn.federation.coordinator_link import CoordinatorLink
    from verfedgnn.federation.event_log import log_event
    from verfedgnn.federation.party_service import align_party, load_finished, read_verdict, run_party
    from verfedgnn.federation.roster import load_party
    from verfedgnn.federation.stores import PartyStore

    output = _prepare_service(log, log_level, threads, output)
    folder = federation if federation.is_dir() else federation.parent
    run_folder = out or (key.parent if key else folder) / "run"
    identity = load_party(federation, key, run_folder)
    config = identity.agreement.config
    read = cache(partial(read_own_ratings, ratings, reading, config))
    if check:
        _check_party(identity, run_folder, None if ratings is None else read, output)
        return
    verdict = read_verdict(after, config, identity.name) if share_verdict else {}
    store = PartyStore(run_folder, identity)
    if align_only and store.has_training:
        raise ConfigError(f"{store.folder} holds a training; choose another --out to align users again")
    if store.is_trained:
        run = load_finished(store, device)
    else:
        check_writable(store.folder)
        if align_only or not store.is_aligned:
            read()  # reports a mistake in the ratings before the first connection
        elif ratings is not None:
            log_event("using the ratings stored at alignment, --ratings is not read", run=str(store.folder))
        with _service(identity, store.folder, None, status) as (halt, publisher, transport):
            link = CoordinatorLink(identity, transport, halt.asked, publisher, verdict=verdict)
            options: dict[str, Any] = {"pad_to": pad_users, "after": after}
            if align_only:
                users = align_party(store, link, read(), **options)
                text = f"{users:,} users in the federation; your aligned ratings are in {store.folder}"
                output.result({"users": users, "run": store.folder}, text)
                sentence = f"{len(read().known_users):,} of the federation's users are yours."
                show_next(output, [sentence], ["party", "--federation", str(federation)])
                return
            run = run_party(store, link, read, device=device, **options)
    output.result(run.metrics, *run_texts(run))
    show_run_findings(output, run, store.folder)


def _check_party(
    identity: MemberIdentity, folder: Path, read: Callable[[], vf.Ratings] | None, output: Output
) -> None:
    """Check what a training needs, and say what is missing. The coordinator should be running."""
    from verfedgnn.federation.doctor import examine, summarise_findings

    findings = examine(identity, folder, read)
    table = Table("check", "", "")
    styles = {"ok": "", "warning": "yellow", "failed": "red"}
    for finding in findings:
        table.add_row(finding.check, finding.outcome, Text(finding.text, styles[finding.outcome]))
    summary = summarise_findings(findings)
    output.result(summary, table)
    if not summary["ready"]:
        raise typer.Exit(1)
    output.remark("next: start the same command without --check on the agreed day")


def read_own_ratings(ratings: str | None, reading: ReadOptions, config: vf.Config) -> vf.Ratings:
    """Read the --ratings source; raise `ConfigError` if the option is missing, or if `config` needs something declared."""
    from verfedgnn.data.table_sources import table_stem
    from verfedgnn.runs.prepared_data import check_declared

    if ratings is None:
        raise ConfigError("--ratings is missing; pass your ratings with --ratings FILE")
    name = table_stem(ratings)
    table = vf.read_ratings(ratings, **reading.for_each([name])[name])
    check_declared(table, config)
    return table


def coordinator(
    folder: Path,
    out: Folder = None,
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT")] = None,
    status: StatusAddress = None,
    device: str = "cpu",
    threads: Threads = 1,
    log: LogFormat = "text",
    log_level: LogLevel = "info",
    output: Output = STANDARD,
) -> None:
    """Run the coordinator of a federation: wait for the parties, align their users, train, and hand out the result.

    After Ctrl-C, SIGTERM or a kill, the same command resumes. `--json` prints the content of metrics.json.

    Args:
        folder: The folder that `federation init` created.
        out: The run folder, resumed if it exists. Default: run, in FOLDER.
        listen: Address to listen on. Default: the agreed port on all addresses.
    """
    from verfedgnn.federation.event_log import log_event
    from verfedgnn.federation.roster import load_coordinator

    output = _prepare_service(log, log_level, threads, output)
    run = out or folder / "run"
    identity = load_coordinator(folder, run)
    address = _parse_address(listen, "--listen") or ("0.0.0.0", identity.agreement.endpoint[1])
    with _service(identity, run, address, status) as (halt, publisher, transport):
        log_event("listening", address=f"{address[0]}:{address[1]}")
        from verfedgnn.federation.coordinator_service import CoordinatorService  # parties connect meanwhile

        service = CoordinatorService(identity, transport, publisher, device=device)
        service.run(halt.asked)
        metrics = json.loads((run / "metrics.json").read_text("utf-8"))
    output.result(metrics, f"The public parameters are in {run}/model. Each party keeps its own model.")
    sentence = "Transcripts of the members show whether all of them received the same."
    show_next(
        output,
        ["The training is finished.", sentence],
        ["federation", "verify", str(run), "--federation", str(folder)],
    )


def _prepare_service(log: str, level: str, threads: int, output: Output) -> Output:
    """Configure the log and the number of threads of a service, and return its output."""
    from verfedgnn.federation.event_log import configure_log

    configure_log(as_json=log == "json", level="warning" if output.quiet and level == "info" else level)
    use_threads(threads)
    return Output(quiet=output.quiet, as_json=output.as_json or log == "json")


@contextmanager
def _service(
    identity: MemberIdentity, run: Path, listen: tuple[str, int] | None, status: str | None
) -> Iterator[tuple[Halt, StatusPublisher, Transport]]:
    """Lock the run folder, publish the status and open the transport of a member; undo that at the end."""
    from verfedgnn.core.files import lock_folder
    from verfedgnn.federation.event_log import RepeatedWarning, log_warning
    from verfedgnn.federation.websocket_transport import WebsocketTransport

    page = _parse_address(f"127.0.0.1:{status}" if (status or "").isdigit() else status, "--status")
    if page is not None and not is_loopback(page[0]):
        log_warning("the status page has no password, and other machines can reach it", address=status)
    with (
        Halt(quiet=True) as halt,
        lock_folder(run),
        StatusPublisher(run, identity, port=page) as publisher,
        closing(WebsocketTransport(identity, RepeatedWarning("connection failed"), listen)) as transport,
    ):
        yield halt, publisher, transport


def _parse_address(text: str | None, option: str) -> tuple[str, int] | None:
    """Return the host and port in HOST:PORT, or None if the option is not given."""
    if text is None:
        return None
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{option} takes HOST:PORT, not '{text}'; for example {option} 127.0.0.1:9100")
    return host.strip("[]"), int(port)


def status(where: str, output: Output = STANDARD) -> None:
    """Show the rounds, validation error, parties, bytes and remaining time of a coordinator or party, and who waits for whom.

    Args:
        where: A run folder, the folder of a member or of its nights (the last one counts), or http://HOST:PORT of a --status page.
    """
    with parsing(f"the status of {where}", "start the member again, which writes it anew"):
        if where.startswith(("http://", "https://")):
            about, run = _fetch_status(where), Path()
        else:
            file = _find_status(Path(where))
            check_links(file.parent)
            about, run = dict(json.loads(file.read_text("utf-8"))), file.parent
        tables = (*make_tables(about), *(make_members_tables(about)[1:] if about.get("members") else ()))
        process = describe_process(about)
    output.result(about, *(table for table in tables if table.row_count))
    finished = about.get("state") == "finished" and str(about.get("role")).startswith("party")
    words = ["serve", str(run)] if finished and (run / "metrics.json").is_file() else ["status", where]
    show_next(output, [process], words)


def _find_status(folder: Path) -> Path:
    for patterns in (["status.json"], ["*/status.json", "nights/*/status.json"]):
        files = [file for pattern in patterns for file in folder.glob(pattern) if file.is_file()]
        if files:
            return max(files, key=lambda file: file.stat().st_mtime)
    raise RunError(
        f"there is no status in {folder}; pass the run folder of a coordinator or party that has been started"
    )


def _fetch_status(url: str) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(url.rstrip("/") + "/status.json", timeout=5) as answer:
            return dict(json.loads(answer.read(1 << 20)))
    except (urllib.error.URLError, ValueError, OSError) as error:
        raise RunError(
            f"no status at {url} ({getattr(error, 'reason', error)}); start the member with --status"
        ) from None
