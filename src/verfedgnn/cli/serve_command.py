"""`verfedgnn serve` and `confirm`: recommendations over HTTP and on a web page, and what customers click."""

from __future__ import annotations

import socket
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verfedgnn.cli.output import STANDARD, Output
from verfedgnn.cli.shared_options import RUN
from verfedgnn.cli.tables import make_table
from verfedgnn.core.connection_table import is_loopback
from verfedgnn.core.errors import ConfigError

if TYPE_CHECKING:
    from verfedgnn.serving.split_test import SplitTest

SplitPercent = Annotated[
    int | None,
    typer.Option(
        "--split-test",
        metavar="PERCENT",
        help="Give this percentage of the customers federated lists, and the others those of the party alone.",
        min=1,
        max=99,
        rich_help_panel=RUN,
    ),
]
SplitKey = Annotated[
    Path | None,
    typer.Option(
        help="File with the secret that puts customers into buckets, created if missing; in the run folder by default.",
        rich_help_panel=RUN,
    ),
]


def serve(
    run: Annotated[
        Path,
        typer.Argument(help="Run folder. Of a folder of runs, the newest finished one is served."),
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
    split_test: SplitPercent = None,
    split_key: SplitKey = None,
    threads: Annotated[
        int,
        typer.Option(help="Threads that compute scores; 0 uses all cores.", min=0, rich_help_panel=RUN),
    ] = 1,
    output: Output = STANDARD,
) -> None:
    """Serve recommendations, similar items and newcomers over HTTP, with a web page at /.

    If RUN is a symbolic link, the server follows it. When the link is switched, the new run is loaded in the background and then
    answers, without a failed request.
    """
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401

        from verfedgnn.serving.request_guard import read_keys
        from verfedgnn.serving.server import serve as serve_run
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"serving needs {error.name}, which is not installed; run in a checkout: pip install '.[serve]'"
        ) from None
    keys = read_keys(api_key_file)
    if not keys and not is_loopback(host.strip("[]")):
        raise ConfigError(
            f"--host {host} is reachable from other machines, so an API key is required. "
            "Set one with --api-key-file or VERFEDGNN_API_KEY, or listen on 127.0.0.1."
        )
    split = read_split(run, split_test, split_key)
    run = find_run(run)
    try:
        with _listen(host, port) as listener:
            name = f"[{host}]" if ":" in host else host
            address = f"http://{name}:{listener.getsockname()[1]}"
            note = "API key required" if keys else "no API key, this machine only"

            def ready() -> None:
                message = f"serving {run} at {address} ({note}); press Ctrl-C to stop"
                output.result({"address": address, "key": bool(keys)}, message)
                if split is not None:
                    share = f"{split.percent:g} % of the customers get federated lists"
                    output.remark(
                        f"split test: {share}; log the field bucket, then run `verfedgnn confirm clicks.csv`"
                    )
                output.remark(f"next: open {address} in a browser")

            serve_run(
                run,
                listener,
                ready,
                party=party,
                keys=keys,
                threads=threads,
                access_log=access_log,
                split=split,
            )
    except KeyboardInterrupt:
        pass  # Ctrl-C and SIGTERM are the normal ways to stop a server


def confirm(
    clicks: Annotated[
        Path,
        typer.Argument(
            help="CSV file with the columns user, bucket and clicked (1, 0 or a count); a user may have several rows."
        ),
    ],
    output: Output = STANDARD,
) -> None:
    """Compare the two buckets of a split test (`serve --split-test`) by what customers clicked, with a 95 % interval."""
    from verfedgnn.serving.split_test import confirm as compare_buckets

    found = compare_buckets(clicks)
    shares = [f"{share:.{found.digits}f}" for share in (found.federated, found.alone)]
    rows = [
        ["customers", *(f"{count:,}" for count in found.counts.values()), ""],
        ["customers who clicked, of 100", *shares, found.interval],
    ]
    table = make_table(["", "federated", "alone", "difference (95 % interval)"], rows)
    output.result(asdict(found) | {"sentence": found.sentence}, table, found.sentence)
    if found.unmarked:
        output.remark(f"left out {found.unmarked:,} rows without bucket")


def read_split(run: Path, percent: int | None, key: Path | None) -> SplitTest | None:
    """Return the split test of these options; None without one."""
    from verfedgnn.runs.run_folder import SPLIT_SECRET
    from verfedgnn.serving.split_test import open_split_test

    if percent is None:
        if key is not None:
            raise ConfigError("--split-key belongs to --split-test PERCENT; give both or none")
        return None
    if key is None and (run.is_symlink() or not (run / "config.toml").is_file()):
        raise ConfigError(
            f"{run} may lead to another run tomorrow, which would put customers into other buckets; name a file for the "
            "secret outside of the runs: --split-key FILE"
        )
    return open_split_test(percent, key or run / SPLIT_SECRET)


def find_run(given: Path) -> Path:
    """Return the given run folder; of a folder of runs, the newest finished one."""
    from verfedgnn.runs.run_folder import list_runs

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
