"""`verfedgnn export`: a run's vectors as Parquet or NumPy files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from verfedgnn.embeddings import FORMATS
from verfedgnn.embeddings import export as export_embeddings
from verfedgnn.run import Run


def export(
    run: Annotated[Path, typer.Argument(help="The run folder.")],
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    kind: Annotated[str, typer.Option("--format", help=f"{' or '.join(FORMATS)}.")] = "parquet",
    party: Annotated[str | None, typer.Option(help="Only this party's.")] = None,
) -> None:
    """Write the vectors of users and items, whose products are the predicted ratings, with ids and titles.

    A folder a party; embeddings.json says which components are factors, biases and the mean rating.
    """
    loaded = Run.load(run)
    chosen = list(loaded.embeddings().values()) if party is None else [loaded.embeddings(party)]
    files = export_embeddings(chosen, out, kind)
    console = Console(highlight=False, soft_wrap=True, markup=False)
    for each in chosen:
        parts = ", ".join(f"{name} {part.start}:{part.stop}" for name, part in each.parts.items())
        console.print(f"{each.party}: {len(each.users):,} users, {len(each.items):,} items; components: {parts}")
    console.print(f"written: {len(files)} files in {out}")
