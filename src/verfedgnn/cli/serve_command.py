"""`verfedgnn serve`: a run's recommendations over HTTP, and as a page for people."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated

import typer

from verfedgnn.cli.output import Output
from verfedgnn.cli.shared_options import RUN, AsJson, Quiet, RunFolder
from verfedgnn.core.errors import ConfigError


def serve(
    run: RunFolder,
    host: Annotated[
        str, typer.Option(help="Address to listen at; anything but this machine's own needs a key.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at; 0: a free one.", min=0, max=65535)] = 8000,
    party: Annotated[str | None, typer.Option(help="Only this party's catalogue.")] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(help="A file with the key that requests must carry; unset: VERFEDGNN_API_KEY, or none."),
    ] = None,
    approximate: Annotated[
        bool,
        typer.Option(
            "--approximate",
            help="Search catalogues from 300,000 items on by an index; a few per cent may be missed.",
        ),
    ] = False,
    workers: Annotated[
        int,
        typer.Option(
            help="Processes that serve; each holds the run in memory.", min=1, max=64, rich_help_panel=RUN
        ),
    ] = 1,
    threads: Annotated[
        int,
        typer.Option(
            help="Processor threads for scores, of each worker; 0: all.", min=0, rich_help_panel=RUN
        ),
    ] = 1,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Serve recommendations, similar items and newcomers over HTTP, with a page at /."""
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401

        from verfedgnn.serving.http.request_guard import is_loopback, read_key
        from verfedgnn.serving.http.server_process import Served
        from verfedgnn.serving.http.server_process import serve as serve_alone
        from verfedgnn.serving.http.workers import serve_by
    except ModuleNotFoundError as error:
        raise ConfigError(f"serving needs {error.name}: pip install 'verfedgnn[serve]'") from None
    key = read_key(api_key_file)
    if key is None and not is_loopback(host):
        raise ConfigError(
            f"--host {host} can be reached from other machines: set a key with --api-key-file or VERFEDGNN_API_KEY, "
            "or listen at 127.0.0.1"
        )
    served = Served(run, party, key, approximate, threads)
    try:
        with _listen(host, port) as listener:
            shown = f"[{host}]" if ":" in host else host
            where = f"http://{shown}:{listener.getsockname()[1]}"
            note = "a key is needed" if key else "no key: this machine only"

            def ready() -> None:
                said = f"serving {run} at {where} ({note}); Ctrl-C stops"
                Output(quiet=quiet, as_json=as_json).result({"address": where, "key": key is not None}, said)

            if workers == 1:
                serve_alone(served, listener, ready)
            else:
                serve_by(workers, served, listener, ready)
    except KeyboardInterrupt:
        pass  # Ctrl-C or SIGTERM: how a server is stopped


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(
            f"cannot listen at {host} port {port}: {error.strerror}; choose another --host or --port"
        ) from None
