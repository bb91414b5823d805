"""`verfedgnn recommend`: recommend items to one user, or to all users as a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from verfedgnn.cli.next_step import command_text, show_next
from verfedgnn.cli.output import STANDARD, Output
from verfedgnn.cli.serve_command import SplitKey, SplitPercent, read_split
from verfedgnn.cli.shared_options import RunFolder
from verfedgnn.cli.tables import make_table
from verfedgnn.core.errors import ConfigError, DataError, RunError

if TYPE_CHECKING:
    from verfedgnn.runs.run import Run
    from verfedgnn.serving.split_test import SplitTest


def recommend(
    run: RunFolder,
    user: Annotated[str | None, typer.Option(help="Id of the user, as in the data.")] = None,
    rated: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ITEM=RATING",
            help="Recommend to someone new who gave this rating; PARTY:ITEM=RATING if several parties have the item. Repeatable.",
        ),
    ] = None,
    top: Annotated[int, typer.Option(help="Number of items per user.", min=1)] = 10,
    party: Annotated[
        str | None, typer.Option(help="Recommend only this party's items; all by default.")
    ] = None,
    everybody: Annotated[bool, typer.Option("--all", help="Recommend to every user; needs --out.")] = False,
    out: Annotated[Path | None, typer.Option(help="Parquet file to write with --all.")] = None,
    split_test: SplitPercent = None,
    split_key: SplitKey = None,
    output: Output = STANDARD,
) -> None:
    """Recommend items that a user has not rated yet, in the order of the run's lists, with predicted ratings.

    A user who is new to a party and known to another one has a list, too. Someone whom the run does not know is served from
    their ratings (--rated).
    """
    from verfedgnn.runs.run import Run

    if everybody != (out is not None) or [everybody, user is not None, bool(rated)].count(True) != 1:
        raise ConfigError(
            "choose the users: --user ID for one, --rated ITEM=RATING for someone new, or --all --out FILE.parquet for all"
        )
    if out is None and split_test is not None:
        raise ConfigError("--split-test writes the lists of all users; add --all --out FILE.parquet")
    if out is not None:
        _write_all(run, out, top, party, read_split(run, split_test, split_key), output)
        return
    loaded = Run.load(run)
    if user is None:
        found = loaded.recommend(None, top, party, ratings=_read_rated(loaded, rated or []))
    else:
        _check_user(loaded, run, user, party)
        found = loaded.recommend(user, top, party=party)
    rows = found.to_rows()
    predicts = not loaded.config.ranks
    hidden = {
        "score",
        *([] if any(row["title"] for row in rows) else ["title"]),
        *([] if predicts else ["rating"]),
    }
    shown = [name for name in ("item", "title", "party", "rating", "reason") if name not in hidden]
    title = "For someone new" if user is None else f"For user {user}"
    cells = [
        [str(place), *(f"{row[name]:.2f}" if name == "rating" else row[name] for name in shown)]
        for place, row in enumerate(rows, 1)
    ]
    output.result(rows, make_table(["", *shown], cells, title))
    if not found:
        output.remark("no recommendations: this user has rated every item")
    elif loaded.ranker.config.ranks:
        predicted = " The rating is the predicted one." if predicts else ""
        output.remark(f"Items come in the order of their scores.{predicted}")
    if party is None and len(loaded.parties) > 1:
        names = ", ".join(each.name for each in loaded.parties)
        output.remark(
            f"This is one list over all parties ({names}). --party {loaded.parties[0].name} lists the items of one."
        )
    if user is not None and party is not None:
        table_here = next(each.ratings for each in loaded.parties if each.name == party)
        if not (table_here.user_ids[table_here.user] == user).any():
            output.remark(
                f"{user} is new to {party}: this list follows from what training learnt at other parties"
            )
    _show_next(loaded, run, party, output)


def _read_rated(run: Run, texts: list[str]) -> dict[str, Any]:
    """Return the ratings in texts such as `ITEM=5` or `PARTY:ITEM=5`, as `Run.recommend` takes them."""
    found: dict[str, Any] = {}
    for text in texts:
        item, _, stars = text.rpartition("=")
        if not item or not stars:
            raise DataError(
                f"--rated {text} is not ITEM=RATING; write for example --rated {text.strip('=')}=5"
            )
        party, _, own = item.partition(":")
        named = any(each.name == party for each in run.parties)
        if named and not any((each.ratings.item_ids == item).any() for each in run.parties):
            found.setdefault(party, {})[own] = stars
        else:
            found[item] = stars
    return found


def _check_user(run: Run, folder: Path, user: str, party: str | None) -> None:
    """Raise `RunError` for a user whom the run does not know; it shows ids and the way to serve someone new."""
    table = run.parties[0].ratings
    if user and (table.user_ids == user).any():
        return
    owner = next((each for each in run.parties if each.name == party), run.parties[0])
    popular = owner.ratings.item_ids[np.bincount(owner.ratings.item).argmax()]
    rating = f"{owner.name}:{popular}={owner.ratings.scale[1]:g}"
    words = ["recommend", str(folder), "--rated", rating]
    command = command_text([*words, *([] if party is None else ["--party", party])])
    looks = " and ".join(f"'{each}'" for each in table.user_ids[table.known_users[:2]])
    raise RunError(
        f"user '{user}' was not in training; this run knows {len(table.known_users):,} users, and ids look like {looks}. "
        f"For someone new, pass their ratings, for example: {command}"
    )


def _show_next(run: Run, folder: Path, party: str | None, output: Output) -> None:
    """Say how the lists compare with the most popular items, if that was measured, and how to serve them."""
    from verfedgnn.reports.phrases import warn_of_lists

    rows = [row for row in run.metrics["parties"] if party in (None, row["name"])]
    warning = warn_of_lists(run.metrics | {"parties": rows})
    measured = all(row[of].get("ndcg@20") is not None for row in rows for of in ("test", "popularity"))
    better = ["The lists are at least as good as the most popular items."] if measured else []
    show_next(
        output,
        [warning] if warning else better,
        ["serve", str(folder), *([] if party is None else ["--party", party])],
    )


def _write_all(
    run: Path, out: Path, top: int, party: str | None, split: SplitTest | None, output: Output
) -> None:
    from verfedgnn.runs.run import Run
    from verfedgnn.serving.catalogue import Catalogue
    from verfedgnn.serving.run_answers import write_table

    if out.suffix.lower() not in (".parquet", ".pq"):
        raise RunError(
            f"--out {out} is not a Parquet file name; use for example {out.with_suffix('.parquet').name}"
        )
    if out.exists():
        raise RunError(f"{out} already exists; choose another --out")
    if not out.parent.is_dir():
        raise RunError(
            f"cannot write {out.name}: the folder {out.parent} does not exist; create it or choose another --out"
        )
    loaded = Run.load(run)
    catalogue = Catalogue(loaded, run.resolve().name, party, split)
    with output.busy("scoring"):
        rows = write_table(catalogue, out, top)
    output.result({"file": out, "rows": rows}, f"written: {out}, {rows:,} rows")
    _show_next(loaded, run, party, output)
