"""`verfedgnn party` and `verfedgnn align`: an organisation's own side of a federation."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from verfedgnn.cli.reading import Columns, Delimiter, Duplicates, Encoding, Events, Query, Scale
from verfedgnn.cli.service import (
    DATA,
    RUN,
    Device,
    Every,
    FederationFile,
    KeyFile,
    LogFormat,
    Quiet,
    Status,
    Threads,
    begin,
    connected,
    make_watch,
    member,
    stopping,
)
from verfedgnn.cli.show import run_table
from verfedgnn.data import Ratings, read_ratings
from verfedgnn.data.reading import Reading
from verfedgnn.data.tables import table_stem
from verfedgnn.errors import ConfigError
from verfedgnn.federation.align import align as align_users
from verfedgnn.federation.folder import PartyFolder
from verfedgnn.federation.identity import Identity
from verfedgnn.federation.link import Link
from verfedgnn.federation.log import tell, warn
from verfedgnn.federation.party import PartyService, Realign, choose_gate
from verfedgnn.prepare import prepare
from verfedgnn.privacy.alignment import Each, workers
from verfedgnn.run import Run
from verfedgnn.runtime.checkpoint import holding

RatingsFile = Annotated[
    str | None, typer.Option("--ratings", help="Your ratings: a file, a folder or postgresql://...", rich_help_panel=DATA)
]
Out = Annotated[
    Path | None,
    typer.Option(help="Your run folder; what is there is continued. Unset: run, beside the key.", rich_help_panel=RUN),
]
Processes = Annotated[int, typer.Option(help="Processes that align users by ecdh; 0: one per core.", min=0, rich_help_panel=RUN)]


def party(
    federation: FederationFile,
    ratings: RatingsFile = None,
    key: KeyFile = None,
    out: Out = None,
    query: Query = None,
    columns: Columns = None,
    events: Events = None,
    duplicates: Duplicates = None,
    encoding: Encoding = None,
    delimiter: Delimiter = None,
    scale: Scale = None,
    status: Status = None,
    checkpoint_every: Every = 1,
    device: Device = "cpu",
    threads: Threads = 1,
    processes: Processes = 0,
    log: LogFormat = "text",
    quiet: Quiet = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print metrics.json on one line at the end.", rich_help_panel=RUN)
    ] = False,
) -> None:
    """Run your side of a federation: align users, train with the others, end with a model of your own."""
    begin(log, quiet, threads)
    identity = member(federation, key)
    store = PartyFolder(out or identity.key_file.parent / "run", identity)
    reading = Reading.of(
        query=query,
        columns=columns,
        events=events,
        duplicates=duplicates,
        encoding=encoding,
        delimiter=delimiter,
        scale=scale,
    )
    if store.finished:
        tell("this run is finished already", run=str(store.folder))
        if store.ungated:
            choose_gate(store.folder)
        _show(Run.load(store.folder), store.folder, as_json=as_json, quiet=quiet)
        return
    table = None if store.begun else ratings_of_party(ratings, reading)
    if store.begun and ratings is not None:
        tell("going on with the ratings stored when users were aligned; --ratings is not read again", run=str(store.folder))
    each_of = workers(processes or os.cpu_count() or 1)
    with stopping() as stop, holding(store.folder), connected(identity) as transport, each_of as each:
        watch = make_watch(store.folder, status)
        link = Link(identity, transport, stop)
        while True:
            if not store.begun:
                table = table or ratings_of_party(ratings, reading)
                _align(identity, store, link, table, each)
            try:
                service = PartyService(identity, store, link, watch, checkpoint_every=checkpoint_every, device=device)
                run = service.run()
                break
            except Realign:
                warn("another party came without aligned users: aligning again")
                store.clear()
        watch.close()
    _show(run, store.folder, as_json=as_json, quiet=quiet)


def align(
    federation: FederationFile,
    ratings: RatingsFile = None,
    key: KeyFile = None,
    out: Out = None,
    query: Query = None,
    columns: Columns = None,
    events: Events = None,
    duplicates: Duplicates = None,
    encoding: Encoding = None,
    delimiter: Delimiter = None,
    scale: Scale = None,
    processes: Processes = 0,
    log: LogFormat = "text",
    quiet: Quiet = False,
) -> None:
    """Find the users all parties have in common, without exchanging lists of users; `party` does this by itself if need be."""
    begin(log, quiet, 1)
    identity = member(federation, key)
    store = PartyFolder(out or identity.key_file.parent / "run", identity)
    reading = Reading.of(
        query=query,
        columns=columns,
        events=events,
        duplicates=duplicates,
        encoding=encoding,
        delimiter=delimiter,
        scale=scale,
    )
    if store.trained:
        raise ConfigError(f"{store.folder} holds a training with aligned users; choose another --out to align anew")
    table = ratings_of_party(ratings, reading)
    each_of = workers(processes or os.cpu_count() or 1)
    with stopping() as stop, holding(store.folder), connected(identity) as transport, each_of as each:
        users = _align(identity, store, Link(identity, transport, stop), table, each)
    Console().print(f"{users:,} common users, stored in {store.folder}", highlight=False, soft_wrap=True)


def _align(identity: Identity, store: PartyFolder, link: Link, table: Ratings, each: Each) -> int:
    data, name = align_users(table, identity, link, each)
    (prepared,) = prepare([data], identity.agreement.config, torch.device("cpu"))
    store.begin(prepared, name)
    return data.ratings.n_users


def ratings_of_party(ratings: str | None, reading: Reading) -> Ratings:
    """What stands behind --ratings."""
    if ratings is None:
        raise ConfigError("give your ratings with --ratings FILE")
    name = table_stem(ratings)
    return read_ratings(ratings, **reading.for_each([name])[name])


def _show(run: Run, folder: Path, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        typer.echo(json.dumps(run.metrics))
    elif not quiet:
        console = Console()
        console.print(run_table(run.metrics))
        console.print(f"next: {sys.argv[0]} recommend {folder} --user ID", highlight=False, markup=False, soft_wrap=True)
