"""`verfedgnn serve`: serve a run's recommendations over HTTP and on a web page."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated

import typer

from verfedgnn.cli.completion import complete_run_folders
from verfedgnn.cli.output import Output
from verfedgnn.cli.shared_options import RUN, AsJson, Quiet
from verfedgnn.core.errors import ConfigError
from verfedgnn.core.hosts import is_loopback


def serve(
    run: Annotated[
        Path,
        typer.Argument(
            help="Run folder. Of a folder of runs, the newest finished one is served.",
            autocompletion=complete_run_folders,
        ),
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on. Any address but a loopback address needs an API key.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0 picks a free port.", min=0, max=65535)
    ] = 8000,
    party: Annotated[
        str | None, typer.Option(help="Serve only this party's catalogue; all by default.")
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the API key that requests must send, or a TOML file with several keys and their rights; "
            "the key in VERFEDGNN_API_KEY by default."
        ),
    ] = None,
    access_log: Annotated[
        Path | None,
        typer.Option(
            help="Append one line of JSON per request to this file, without user ids.", rich_help_panel=RUN
        ),
    ] = None,
    shadow: Annotated[
        Path | None,
        typer.Option(
            help="Run that also answers GET /v1/recommendations; its answers are compared and recorded, never sent.",
            autocompletion=complete_run_folders,
            rich_help_panel=RUN,
        ),
    ] = None,
    shadow_log: Annotated[
        Path | None,
        typer.Option(
            help="Append the items of both runs and their overlap to this file, one line of JSON per request, without user ids.",
            rich_help_panel=RUN,
        ),
    ] = None,
    shadow_users: Annotated[
        bool,
        typer.Option("--shadow-users", help="Also write user ids to the shadow log.", rich_help_panel=RUN),
    ] = False,
    threads: Annotated[
        int,
        typer.Option(help="Threads that compute scores; 0 uses all cores.", min=0, rich_help_panel=RUN),
    ] = 1,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Serve recommendations, similar items and newcomers over HTTP, with a web page at /.

    If RUN is a symbolic link, the server follows it. When the link is switched, the new run is loaded in the background and then
    answers, without a failed request.
    """
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401

        from verfedgnn.serving.http.api_keys import read_keys
        from verfedgnn.serving.http.server_process import ServeOptions
        from verfedgnn.serving.http.server_process import serve as serve_run
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"serving needs {error.name}, which is not installed. Run: pip install 'verfedgnn[serve]'"
        ) from None
    keys = read_keys(api_key_file)
    if not keys and not is_loopback(host.strip("[]")):
        raise ConfigError(
            f"--host {host} is reachable from other machines, so an API key is required. "
            "Set one with --api-key-file or VERFEDGNN_API_KEY, or listen on 127.0.0.1."
        )
    if (shadow is None) != (shadow_log is None):
        raise ConfigError("--shadow RUN and --shadow-log FILE belong together; give both or none")
    run = find_run(run)
    options = ServeOptions(
        run,
        party,
        keys,
        threads,
        access_log,
        shadow=shadow,
        shadow_log=shadow_log,
        shadow_users=shadow_users,
    )
    try:
        with _listen(host, port) as listener:
            name = f"[{host}]" if ":" in host else host
            address = f"http://{name}:{listener.getsockname()[1]}"
            note = "API key required" if keys else "no API key, this machine only"

            def ready() -> None:
                message = f"serving {run} at {address} ({note}); press Ctrl-C to stop"
                result = {"address": address, "key": bool(keys)}
                output = Output(quiet=quiet, as_json=as_json)
                output.result(result, message)
                output.remark(f"next: open {address} in a browser")

            serve_run(options, listener, ready)
    except KeyboardInterrupt:
        pass  # Ctrl-C and SIGTERM are the normal ways to stop a server


def find_run(given: Path) -> Path:
    """Return the given run folder; of a folder of runs, the newest finished one."""
    from verfedgnn.runs.run_list import list_runs

    if (given / "config.toml").is_file() or not given.is_dir():
        return given
    found = [given / run.folder for run in reversed(list_runs(given)) if run.finished]
    runs = [folder for folder in found if (folder / "parties").is_dir()]
    if not runs:
        raise ConfigError(
            f"{given} holds no finished run; give the folder that `verfedgnn train --out` wrote"
        )
    return runs[0]


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error.strerror}; choose another --host or --port"
        ) from None
