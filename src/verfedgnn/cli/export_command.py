"""`verfedgnn export`: write a run's embeddings as Parquet or NumPy files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from verfedgnn.cli.completion import among
from verfedgnn.cli.next_step import show_next
from verfedgnn.cli.output import Output
from verfedgnn.cli.shared_options import AsJson, Quiet, RunFolder


def export(
    run: RunFolder,
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    kind: Annotated[
        str,
        typer.Option(
            "--format", help="File format: parquet or npy.", autocompletion=among(("parquet", "npy"))
        ),
    ] = "parquet",
    party: Annotated[str | None, typer.Option(help="Export only this party; all by default.")] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Write the user and item vectors of the served models, with ids and titles.

    Each party gets a folder with the vectors whose dot products are the predicted ratings. Vectors that order
    lists are in its subfolder `lists`. embeddings.json says what a product means and lists the components.
    """
    from verfedgnn.runs.embeddings import export_embeddings
    from verfedgnn.runs.run import Run

    loaded = Run.load(run)
    models = [loaded] if loaded.lists is None else [loaded, loaded.lists]
    chosen = [
        each
        for model in models
        for each in (model.embeddings().values() if party is None else [model.embeddings(party)])
    ]
    files = export_embeddings(chosen, out, kind)
    lines = []
    for each in chosen:
        parts = ", ".join(f"{name} {part.start}:{part.stop}" for name, part in each.parts.items())
        lines.append(
            f"{each.party}, {each.purpose}: {len(each.users):,} users, {len(each.items):,} items; components: {parts}"
        )
    output = Output(quiet=quiet, as_json=as_json)
    output.result({"files": files}, *lines, f"written: {len(files)} files in {out}")
    sentence = (
        "The dot product of a user's and an item's vector is a prediction; embeddings.json says of what."
    )
    show_next(output, [sentence], ["serve", str(run), *([] if party is None else ["--party", party])])
