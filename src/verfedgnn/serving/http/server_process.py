"""One server process for a run, on a socket that is already listening."""

from __future__ import annotations

import gc
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from verfedgnn.serving.http.access_log import AccessLog
from verfedgnn.serving.http.api_keys import ApiKey, TokenBucket, make_limits

if TYPE_CHECKING:
    from fastapi import FastAPI

    from verfedgnn.serving.http.server_metrics import ServerMetrics
    from verfedgnn.serving.http.shadow import ServedRuns

SWITCH_INTERVAL = 0.0005
"""Seconds after which the event loop yields the interpreter to the scoring thread. Python's default of 0.005 s adds tens of
milliseconds per batch under load."""
KEEP_ALIVE = 75
"""Seconds after which an idle connection is closed. Clients and proxies usually close theirs earlier, so that no connection is
closed while a request is being sent."""


@dataclass(frozen=True)
class ServeOptions:
    """The run to serve and how to serve it."""

    run: Path
    party: str | None
    """Name of the only party to serve; None serves all."""
    keys: tuple[ApiKey, ...]
    """API keys of which requests must carry one; without any, only this machine is served."""
    approximate: bool
    """Whether large catalogues get an approximate index."""
    threads: int
    """Threads that compute scores; 0 uses all cores."""
    workers: int = 1
    """Number of processes that share the rate limits."""
    access_log: Path | None = None
    """File to which requests are logged."""
    ratings: tuple[str, ...] = ()
    """Sources of ratings that are newer than the run, each `NAME=SOURCE`."""
    user_features: tuple[str, ...] = ()
    """Tables of customers, each `NAME=FILE`."""
    others: tuple[Path, ...] = ()
    """Runs that the page shows beside the first."""
    images: tuple[str, ...] = ()
    """Where pictures of items may come from: a folder, and https origins."""
    shadow: Path | None = None
    """Run that gets the same requests and whose answers are only recorded."""
    shadow_log: Path | None = None
    """File with the answers of both runs."""
    shadow_users: bool = False
    """Whether that file names the users."""


def name_runs(folders: Sequence[Path]) -> dict[str, Path]:
    """Return run folders by the names that the page shows: those of the folders, numbered where two are equal."""
    named: dict[str, Path] = {}
    for folder in folders:
        name = folder.resolve().name
        same = sum(other == name or other.startswith(f"{name} (") for other in named)
        named[f"{name} ({same + 1})" if same else name] = folder.resolve()
    return named


def make_served(options: ServeOptions) -> ServedRuns:
    """Return the application that serves a run as the options say."""
    from verfedgnn.runs.forget_record import is_federated, read_forgotten_users
    from verfedgnn.runs.run import Run
    from verfedgnn.serving.catalogue import Catalogue
    from verfedgnn.serving.http.app import make_app
    from verfedgnn.serving.http.item_pictures import read_picture_options
    from verfedgnn.serving.http.live_run import LiveRun
    from verfedgnn.serving.http.server_metrics import ServerMetrics
    from verfedgnn.serving.http.shadow import ServedRuns, ShadowLog, UncountedMetrics
    from verfedgnn.serving.newer_ratings import read_newer_ratings
    from verfedgnn.serving.user_features import read_user_features

    pictures = read_picture_options(options.images)
    others = name_runs(options.others)

    def build(
        folder: Path,
        metrics: ServerMetrics,
        limits: Mapping[str, TokenBucket | None],
        access_log: Path | None,
    ) -> FastAPI:
        run = Run.load(folder)
        served = {party.name: party.ratings for party in run.parties if options.party in (None, party.name)}
        gone = partial(read_forgotten_users(folder).find, federated=is_federated(folder))
        newer = {
            party: table.select_users(~gone(table.user_ids))
            for party, table in read_newer_ratings(options.ratings, served).items()
            if not gone(table.user_ids).all()
        }
        features = {
            party: table.select(~gone(table.ids))
            for party, table in read_user_features(options.user_features, list(served)).items()
            if not gone(table.ids).all()
        }
        catalogue = Catalogue(
            run, folder.name, options.party, approximate=options.approximate, newer=newer, features=features
        )
        log = None if access_log is None else AccessLog(access_log)
        return make_app(
            catalogue,
            keys=options.keys,
            log=log,
            metrics=metrics,
            folder=folder,
            pictures=pictures,
            limits=limits,
            others=[] if folder in others.values() else list(others),
        )

    metrics = ServerMetrics()
    limits = make_limits(options.keys, options.workers)

    def build_served(folder: Path) -> FastAPI:
        return build(folder, metrics, limits, options.access_log)

    shadow = None
    log = None
    if options.shadow is not None and options.shadow_log is not None:
        log = ShadowLog(options.shadow_log, users=options.shadow_users)
        unlimited = dict.fromkeys(limits)  # the served run has taken the tokens of a request
        shadow = LiveRun(options.shadow, lambda folder: build(folder, UncountedMetrics(), unlimited, None))
    beside = {name: LiveRun(folder, build_served) for name, folder in others.items()}
    return ServedRuns(LiveRun(options.run, build_served), shadow, log, beside)


def serve(options: ServeOptions, listener: socket.socket, ready: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM; uvicorn then finishes open requests and raises the signal again."""
    import torch

    from verfedgnn.serving.http.bounded_protocol import make_server

    if options.threads:
        torch.set_num_threads(options.threads)
    app = make_served(options)
    sys.setswitchinterval(SWITCH_INTERVAL)
    gc.collect()
    gc.freeze()  # the run stays in memory: collecting it again and again would delay requests
    ready()
    make_server(app, timeout_graceful_shutdown=5, timeout_keep_alive=KEEP_ALIVE).run([listener])
