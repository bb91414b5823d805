"""`verfedgnn flare`: a federation as a job of NVIDIA FLARE, and what its sites need for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from verfedgnn.cli.command_app import CommandApp
from verfedgnn.cli.next_step import show_next
from verfedgnn.cli.output import STANDARD, Output
from verfedgnn.cli.shared_options import RUN, FederationFile, Threads
from verfedgnn.core.errors import ConfigError

if TYPE_CHECKING:
    from verfedgnn.data.read_options import ReadOptions

app = CommandApp(
    name="flare",
    help="Run a federation as a job of NVIDIA FLARE, where the organisations already have it.",
)


@app.command()
def job(
    federation: FederationFile,
    out: Annotated[Path, typer.Option(help="The folder in which the folder of the job is created.")],
    name: Annotated[
        str | None, typer.Option(help="Name of the job. Default: the name of the federation.")
    ] = None,
    output: Output = STANDARD,
) -> None:
    """Write a job that trains the federation, to be submitted with `nvflare job submit`.

    It holds the fingerprint of the agreement, no code and no data. Submit it again to resume.
    """
    from verfedgnn_flare import recipe as find_recipe

    recipe = find_recipe(federation, name=name)
    recipe.export(str(out))
    folder = out / recipe.name
    output.result({"job": folder}, f"the job is in {folder}")
    output.remark(f"next: nvflare job submit -j {folder}")


@app.command()
def site(
    *,
    workspace: Annotated[Path, typer.Argument(help="The FLARE workspace of this site, which has `local`.")],
    federation: Annotated[
        Path,
        typer.Option(help="Folder with federation.toml and the private key of the party or the coordinator."),
    ],
    ratings: Annotated[
        str | None,
        typer.Option(help="Ratings of a party: a file or a folder. The server has none."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder. Default: run, in the federation folder.")
    ] = None,
    reading: ReadOptions,
    device: str = "cpu",
    threads: Threads = 1,
    after: Annotated[
        Path | None,
        typer.Option(
            help="The party's run before this one, to compare the ratings with.", rich_help_panel=RUN
        ),
    ] = None,
    nights: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the nights, instead of --out and --after: a job trains into a folder named after the day and promotes it.",
            rich_help_panel=RUN,
        ),
    ] = None,
    output: Output = STANDARD,
) -> None:
    """Prepare a site, once: write local/verfedgnn.toml and allow the two classes of a job in local/resources.json.

    In a simulation, `{site}` in a path is replaced by the name of the site.
    """
    from verfedgnn_flare.job_site import ALLOWED_CLASSES, prepare_site

    settings: dict[str, Any] = {
        "federation": _absolute(federation),
        "ratings": ratings if ratings is None or "://" in ratings else _absolute(Path(ratings)),
        "out": out and _absolute(out),
        "reading": [list(pair) for pair in reading],
        "device": device,
        "threads": threads,
        "after": after and _absolute(after),
        "nights": nights and _absolute(nights),
    }
    if nights and (out or after):
        raise ConfigError("leave out --out and --after: --nights sets them")
    given = {key: value for key, value in settings.items() if value not in (None, {})}
    file = prepare_site(workspace, given)
    output.result(
        {"settings": file, "allowed": ALLOWED_CLASSES},
        f"{file} names the federation folder and the data; it stays at this site",
        f"{file.with_name('resources.json')} allows {' and '.join(ALLOWED_CLASSES)}",
    )
    show_next(
        output,
        ["Restart the site if it is running."],
        ["flare", "job", "--federation", "federation.toml", "--out", "jobs"],
        "once all sites are prepared",
    )


def _absolute(path: Path) -> str:
    return str(path.expanduser().absolute())
