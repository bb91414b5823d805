"""`verfedgnn recommend`, `serve` and `confirm`: recommendations as a table and over HTTP, and what customers click."""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import verfedgnn as vf
from verfedgnn.cli.next_step import command_text, show_next
from verfedgnn.cli.output import STANDARD, Output
from verfedgnn.cli.shared_options import Count, SplitPercent, Threads
from verfedgnn.cli.tables import make_table
from verfedgnn.core.connection_table import is_loopback
from verfedgnn.core.errors import ConfigError, DataError, RunError

if TYPE_CHECKING:
    from verfedgnn.serving.split_test import SplitTest


def recommend(
    run: Path,
    user: str | None = None,
    rated: Annotated[list[str] | None, typer.Option(metavar="ITEM=RATING")] = None,
    top: Count = 10,
    party: str | None = None,
    everybody: Annotated[bool, typer.Option("--all")] = False,
    out: Path | None = None,
    split_test: SplitPercent = None,
    split_key: Path | None = None,
    output: Output = STANDARD,
) -> None:
    """Recommend items that a user has not rated yet, in the order of the run's lists, with predicted ratings.

    A user who is new to a party and known to another one has a list, too. Someone whom the run does not know is served from
    their ratings (--rated).

    Args:
        user: Id of the user, as in the data.
        rated: Recommend to someone new who gave this rating; PARTY:ITEM=RATING if several parties have the item. Repeatable.
        top: Number of items per user.
        party: Recommend only this party's items; all by default.
        everybody: Recommend to every user; needs --out.
        out: Parquet file to write with --all.
    """
    if everybody != (out is not None) or [everybody, user is not None, bool(rated)].count(True) != 1:
        raise ConfigError(
            "choose the users: --user ID for one, --rated ITEM=RATING for someone new, or --all --out FILE.parquet for all"
        )
    if out is None and split_test is not None:
        raise ConfigError("--split-test writes the lists of all users; add --all --out FILE.parquet")
    if out is not None:
        _write_all(run, out, top, party, read_split(run, split_test, split_key), output)
        return
    loaded = vf.Run.load(run)
    if user is None:
        items = loaded.recommend(None, top, party, ratings=_read_rated(loaded, rated or []))
    else:
        user = _find_user(loaded, run, user, party)
        items = loaded.recommend(user, top, party=party)
    rows = items.to_rows()
    predicts = not loaded.config.ranks
    titled = any(row["title"] for row in rows)
    header = ["item", *["title"] * titled, "party", *["rating"] * predicts, "reason"]
    cells = [
        [str(place), *(f"{row[name]:.2f}" if name == "rating" else row[name] for name in header)]
        for place, row in enumerate(rows, 1)
    ]
    title = "For someone new" if user is None else f"For user {user}"
    output.result(rows, make_table(["", *header], cells, title))
    if not items:
        output.remark("no recommendations: this user has rated every item")
    elif loaded.ranker.config.ranks:
        predicted = " The rating is the predicted one." if predicts else ""
        output.remark(f"Items come in the order of their scores.{predicted}")
    names = [member.name for member in loaded.parties]
    if party is None and names[1:]:
        output.remark(
            f"This is one list over all parties ({', '.join(names)}). --party {names[0]} lists the items of one."
        )
    if user is not None and party is not None:
        at = names.index(party)
        table = loaded.parties[at].ratings
        known = bool((table.user_ids[table.user] == user).any())
        why = "this list follows from what training learnt at other parties"
        if own := not loaded.mixes_federated(at, known=known):
            why = (
                f"{party} serves its own model, since the federated one was not better on its validation part"
            )
        if own or not known:
            output.remark(f"{user} is {'known' if known else 'new'} to {party}: {why}")
    _show_next(loaded, run, party, output)


def _read_rated(run: vf.Run, texts: list[str]) -> dict[str, Any]:
    """Return the ratings in texts such as `ITEM=5` or `PARTY:ITEM=5`, as `Run.recommend` takes them."""
    ratings: dict[str, Any] = {}
    for text in texts:
        item, _, stars = text.rpartition("=")
        if not item or not stars:
            raise DataError(
                f"--rated {text} is not ITEM=RATING; write for example --rated {text.strip('=')}=5"
            )
        party, _, own = item.partition(":")
        named = any(member.name == party for member in run.parties)
        if named and not any((member.ratings.item_ids == item).any() for member in run.parties):
            ratings.setdefault(party, {})[own] = stars
        else:
            ratings[item] = stars
    return ratings


def _find_user(run: vf.Run, folder: Path, user: str, party: str | None) -> str:
    """Return a user's id as the run spells it; raise `RunError` with ids and the way to serve someone new if it knows none."""
    import numpy as np

    from verfedgnn.data.ids import hint_spelling

    table = run.parties[0].ratings
    with suppress(RunError):
        return str(table.user_ids[run.find_users(np.array([user]))[0]])
    hint = hint_spelling(user, lambda other: bool(other) and other in table.user_ids)
    owner = next((member for member in run.parties if member.name == party), run.parties[0])
    popular = owner.ratings.item_ids[np.bincount(owner.ratings.item).argmax()]
    rating = f"{owner.name}:{popular}={owner.ratings.scale[1]:g}"
    command = command_text(["recommend", str(folder), "--rated", rating, *_of_party(party)])
    looks = " and ".join(f"'{name}'" for name in table.user_ids[table.known_users[:2]])
    raise RunError(
        f"user '{user}' was not in training; this run knows {len(table.known_users):,} users, and ids look like {looks}. "
        f"{hint.capitalize() or f'For someone new, pass their ratings, for example: {command}'}"
    )


def _of_party(party: str | None) -> list[str]:
    return [] if party is None else ["--party", party]


def _show_next(run: vf.Run, folder: Path, party: str | None, output: Output) -> None:
    """Say how the lists compare with the most popular items, if that was measured, and how to serve them."""
    from verfedgnn.reports.phrases import warn_of_lists

    rows = [row for row in run.metrics["parties"] if party in (None, row["name"])]
    warning = warn_of_lists(run.metrics | {"parties": rows})
    measured = all(row[of].get("ndcg@20") is not None for row in rows for of in ("test", "popularity"))
    better = ["The lists are at least as good as the most popular items."] if measured else []
    show_next(output, [warning] if warning else better, ["serve", str(folder), *_of_party(party)])


def _write_all(
    run: Path, out: Path, top: int, party: str | None, split: SplitTest | None, output: Output
) -> None:
    from verfedgnn.serving.catalogue import Catalogue
    from verfedgnn.serving.run_answers import write_table

    if out.suffix.lower() not in (".parquet", ".pq"):
        raise RunError(
            f"--out {out} is not a Parquet file name; use for example {out.with_suffix('.parquet').name}"
        )
    if out.exists():
        raise RunError(f"{out} already exists; choose another --out")
    loaded = vf.Run.load(run)
    with output.busy("scoring"):
        rows = write_table(Catalogue(loaded, run.resolve().name, party, split), out, top)
    output.result({"file": out, "rows": rows}, f"written: {out}, {rows:,} rows")
    _show_next(loaded, run, party, output)


def serve(
    run: Path,
    host: str = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8000,
    party: str | None = None,
    api_key_file: Path | None = None,
    access_log: Path | None = None,
    split_test: SplitPercent = None,
    split_key: Path | None = None,
    threads: Threads = 1,
    output: Output = STANDARD,
) -> None:
    """Serve recommendations, similar items and newcomers over HTTP, with a web page at /.

    If RUN is a symbolic link, the server follows it. When the link is switched, the new run is loaded in the background and then
    answers, without a failed request.

    Args:
        host: Address to listen on. Any address but a loopback address needs an API key.
        port: Port to listen on; 0 picks a free port.
        party: Serve only this party's catalogue; all by default.
        api_key_file: File with the API key that requests must send, or a TOML file with several keys and their
            rights; the key in VERFEDGNN_API_KEY by default.
    Run:
        access_log: Append one line of JSON per request to this file, without user ids.
        threads: Threads that compute scores; 0 uses all cores.
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

    def ready() -> None:
        name = f"[{host}]" if ":" in host else host
        address = f"http://{name}:{listener.getsockname()[1]}"
        note = "API key required" if keys else "no API key, this machine only"
        message = f"serving {run} at {address} ({note}); press Ctrl-C to stop"
        output.result({"address": address, "key": bool(keys)}, message)
        if split is not None:
            share = f"{split.percent:g} % of the customers get federated lists"
            output.remark(
                f"split test: {share}; log the field bucket, then run `verfedgnn confirm clicks.csv`"
            )
        output.remark(f"next: open {address} in a browser")

    with suppress(KeyboardInterrupt), _listen(host, port) as listener:  # the normal way to stop a server
        serve_run(
            run, listener, ready, party=party, keys=keys, threads=threads, access_log=access_log, split=split
        )


def confirm(clicks: Path, output: Output = STANDARD) -> None:
    """Compare the two buckets of a split test (`serve --split-test`) by what customers clicked, with a 95 % interval.

    Args:
        clicks: CSV file with the columns user, bucket and clicked (1, 0 or a count); a user may have several rows.
    """
    from verfedgnn.serving.split_test import confirm as compare_buckets

    test = compare_buckets(clicks)
    shares = [f"{share:.{test.digits}f}" for share in (test.federated, test.alone)]
    rows = [
        ["customers", *(f"{count:,}" for count in test.counts.values()), ""],
        ["customers who clicked, of 100", *shares, test.interval],
    ]
    table = make_table(["", "federated", "alone", "difference (95 % interval)"], rows)
    output.result(asdict(test) | {"sentence": test.sentence}, table, test.sentence)
    if test.unmarked:
        output.remark(f"left out {test.unmarked:,} rows without bucket")


def read_split(run: Path, percent: int | None, key: Path | None) -> SplitTest | None:
    """Return the split test of these options; None without one."""
    from verfedgnn.core.files import check_links
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
    check_links(run)  # the secret of somebody else's run may be one
    return open_split_test(percent, key or run / SPLIT_SECRET)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error.strerror}; choose another --host or --port"
        ) from None
