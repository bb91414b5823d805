"""Organisations that share users and have their own items: cut from one table, or read from one source each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from verfedgnn.core.errors import ConfigError, DataError, MissingColumns
from verfedgnn.core.option_names import option, reading_table
from verfedgnn.data.ids import StrArray, find_positions, find_stranger, sort_ids
from verfedgnn.data.publishers import find_layout
from verfedgnn.data.rating_reader import list_tables, locate, read_ratings, refuse_address
from verfedgnn.data.ratings import Ratings, format_count
from verfedgnn.data.read_options import DEFAULT_OPTIONS, ReadOptions
from verfedgnn.data.table_sources import table_stem, tables_by_party

UserRule = Literal["any", "all"] | int
"""Users at any party, at all parties, or at a number of parties or more."""

FEWEST_RATINGS = 20
_NO_PARTIES = "there are no parties: give at least one file or table"
OTHER = "other"
LONGEST_NAME = 100
"""Characters of a party's name, which travels in messages and becomes a file name."""


@dataclass(frozen=True, eq=False)
class PartyData:
    """An organisation's data. All parties of a federation have the same rows of users, each has its own items."""

    name: str
    ratings: Ratings

    def __repr__(self) -> str:
        return f"<PartyData {replace(self.ratings, name=self.name).summary()}>"


def split_items(
    ratings: Ratings, parties: int | None = None, *, seed: int = 0, by: str | None = None
) -> list[PartyData]:
    """Cut a table by items, at random or by a column, and return the parties.

    Without `by`, items go at random to `parties` groups (10, or one per item if they are fewer) of about the same size. With `by`, e.g.
    "genre", each value is a party and items without one go to "unknown". If `parties` is smaller than the number of values,
    those with the most ratings are parties and the others together are "other". Every user of the table is a user of every
    party, and the items that a party receives are its declared catalogue.
    """
    if by is not None:
        groups, note = _group_items(ratings, by, parties)
    else:
        parties = min(10, ratings.n_items) if parties is None else parties
        if not 1 <= parties <= ratings.n_items:
            allowed = f"use {option('parties')} from 1 to {ratings.n_items}"
            raise DataError(f"{ratings.n_items:,} items cannot go to {parties} parties: {allowed}")
        order = np.random.default_rng(seed).permutation(ratings.n_items)
        parts, width = np.array_split(order, parties), len(str(parties - 1))
        groups, note = {f"party-{k:0{width}}": np.sort(part) for k, part in enumerate(parts)}, ""
    cut = []
    for name, index in groups.items():
        table = replace(ratings.select_items(index), name=name, catalogue=len(index))
        cut.append(PartyData(name, table.with_notes(note) if note and name == OTHER else table))
    return cut


def _group_items(ratings: Ratings, by: str, parties: int | None) -> tuple[dict[str, NDArray[np.int64]], str]:
    """Return the items of each value of a column, and a note about the values that are put together as `OTHER`, or ""."""
    if by not in ratings.columns:
        there = ", ".join(ratings.columns) or "none"
        raise DataError(f"{ratings.name} has no item column {by!r} to split by: there is {there}")
    values = ratings.columns[by]
    names, code = np.unique(np.where(values == "", "unknown", values), return_inverse=True)
    rated = np.bincount(code[ratings.item], minlength=len(names))
    order = np.argsort(rated, kind="stable")
    few = int((rated < FEWEST_RATINGS).sum())
    if 0 < few < len(names) and (few == 1 or rated[order[:few]].sum() < FEWEST_RATINGS):
        # The next larger one joins them.
        few += 1
    merged = set() if few == len(names) and rated.max() < FEWEST_RATINGS else set(order[:few].tolist())
    if parties is not None and parties < len(names) - len(merged) + bool(merged):
        merged = set(np.argsort(-rated, kind="stable")[max(1, parties) - 1 :].tolist())
    groups = {str(name): np.flatnonzero(code == k) for k, name in enumerate(names) if k not in merged}
    if not merged:
        return groups, ""
    groups[OTHER] = np.flatnonzero(np.isin(code, sorted(merged)))
    why = "too few ratings for a party each, " if parties is None else ""
    return groups, f"{', '.join(str(names[k]) for k in sorted(merged))}: {why}put together"


def fewest_parties(rule: UserRule, parties: int) -> int:
    """Return at how many of `parties` parties a user must be present to take part."""
    if rule == "any":
        return 1
    if rule == "all":
        return parties
    if not isinstance(rule, int) or rule < 2:
        raise DataError(f"users = {rule!r} is not a rule; use any, all or a number of parties from 2")
    if rule > parties:
        raise DataError(
            f"users = {rule}, but there are only {parties} parties; use any, all or a lower number"
        )
    return rule


def describe_rule(rule: UserRule) -> str:
    """Return the rule in words: "at any party", "at every party" or "at 2 or more parties"."""
    if isinstance(rule, str):
        return {"any": "at any party", "all": "at every party"}[rule]
    return f"at {rule} or more parties"


def parties_from_tables(tables: Sequence[Ratings], users: UserRule = "any") -> list[PartyData]:
    """Make one party of each table, under its name, with aligned users.

    Parties whose highest ratings are within a factor of two share one scale, from the lowest to the highest rating at any of
    them. A party with another scale (5 stars against 10) keeps its own. A given `scale` holds for all.
    """
    highest = max(table.scale[1] for table in tables)
    # If no rating is above 0, half of the highest is not lower than it, and scales cannot be told apart.
    alike = [table for table in tables if highest <= 0 or table.scale[1] > highest / 2]
    shared = (min(table.scale[0] for table in alike), highest)
    declared = all(table.scale_declared for table in tables)
    members = []
    for table in tables:
        scale = shared if table in alike else table.scale
        members.append(PartyData(table.name, replace(table, scale=scale, scale_declared=declared)))
    return align_users(members, users)


def align_users(parties: Sequence[PartyData], users: UserRule = "any") -> list[PartyData]:
    """Give all parties the same rows of users, in the order of ids.

    `users` says who takes part: "any" user of any party, only those at "all" parties, or those at a number of parties or
    more. A party has no ratings of users that it does not know. Its notes say what was dropped.
    """
    if not parties:
        raise DataError(_NO_PARTIES)
    fewest = fewest_parties(users, len(parties))
    tables = [party.ratings for party in parties]
    ids, count = np.unique(np.concatenate([table.user_ids for table in tables]), return_counts=True)
    chosen = sort_ids(ids[count >= fewest])
    names = ", ".join(party.name for party in parties)
    if stranger := find_stranger({party.name: party.ratings.user_ids for party in parties}):
        raise DataError(stranger)
    if not len(chosen):
        remedy = f"use {option('users', 'any')}, or check the spelling of ids"
        raise DataError(f"no user is {describe_rule(users)} of {names}: {remedy}")
    placed = [place_users(table, find_positions(table.user_ids, chosen), chosen, users) for table in tables]
    return [PartyData(party.name, table) for party, table in zip(parties, placed, strict=True)]


def place_users(
    ratings: Ratings, rows: NDArray[np.int64], user_ids: StrArray, users: UserRule = "any"
) -> Ratings:
    """Move each user i of a table to row `rows[i]` of `user_ids`, and drop users whose row is -1, with a note.

    Columns that do not change are not copied. `users` is the rule by which users are dropped.
    """
    if ratings.written is not None:
        written = np.full(len(user_ids), "", ratings.written.dtype)
        written[rows[rows >= 0]] = ratings.written[rows >= 0]
        ratings = replace(ratings, written=written)
    if np.array_equal(rows, np.arange(ratings.n_users)):
        return replace(ratings, user_ids=user_ids)
    row = rows.astype(np.int32)
    dropped = int((rows < 0).sum())
    kept = ratings.take(row[ratings.user] >= 0) if dropped else ratings
    placed = replace(kept, user=row[kept.user], user_ids=user_ids)
    if not dropped:
        return placed
    rest = f"kept {ratings.n_users - dropped:,} of {format_count(ratings.n_users, 'user')}"
    lost = format_count(len(ratings) - len(kept), "rating")
    return placed.with_notes(f"{rest}; {lost} of users who are not {describe_rule(users)} were dropped")


def check_parties(parties: Sequence[PartyData]) -> None:
    """Raise `DataError` unless these parties can form a federation."""
    if not parties:
        raise DataError(_NO_PARTIES)
    _refuse_same_names([party.name for party in parties])
    for party in parties:
        if not 1 <= len(party.name) <= LONGEST_NAME or not party.name.isprintable():
            allowed = f"1 to {LONGEST_NAME} printable characters"
            raise DataError(f"a party's name has {allowed}, not {party.name[:40]!r}: rename it")
    users = parties[0].ratings.user_ids
    if not len(users):
        raise DataError("the parties have no users: give them some")
    rated = np.zeros(len(users), bool)
    for party in parties:
        table = party.ratings
        if not table.n_items or not len(table):
            lack = "ratings" if table.n_items else "items"
            raise DataError(f"party {party.name!r} has no {lack}: leave it out or give it some")
        if not np.array_equal(table.user_ids, users):
            both = f"parties {parties[0].name!r} and {party.name!r}"
            raise DataError(f"{both} have different users: align them with align_users")
        rated[table.user] = True
    if not rated.all():
        idle = f"{format_count(int((~rated).sum()), 'user')} without a rating at any party"
        first = str(users[int(np.argmin(rated))])
        raise DataError(f"{idle}, first {first!r}: remove them from the user ids")


def read_parties(
    data: Any,
    *,
    parties: int | None = None,
    seed: int = 0,
    by: str | None = None,
    users: UserRule = "any",
    own: Mapping[str, Mapping[str, Any]] | None = None,
    reading: ReadOptions = DEFAULT_OPTIONS,
    **options: Any,
) -> list[PartyData]:
    """Read the parties of a federation from files or tables in memory, and check them.

    Args:
        data: A mapping with one table per party, `{"film": frame, "books": "books.csv"}`; one table, whose items are
            split by `parties` or `by`; or a list of sources as on the command line, each `SOURCE` or `NAME=SOURCE`. Each
            table of a folder without a publisher's layout is a party, unless `by` is given. A table is a path, `Ratings`, an Arrow table,
            a data frame (pandas, polars, ...) or a tuple (users, items, ratings). A data frame with a column "party", or the
            one that `columns={"party": ...}` names, holds the tables of all parties.
        parties: Number of parties that one table is split into.
        seed: Seed of that split, and of synthetic data.
        by: Item column that one table is split by.
        users: Who takes part, see `align_users`.
        own: Options for single parties, by name: `{"books": {"scale": (0, 10)}}`.
        reading: The same options as texts of the command line.
        **options: Options of `read_ratings` for all tables: columns, missing, duplicates, events, scale, ...
    """
    cut = (parties, by) != (None, None)
    if isinstance(data, Mapping) and cut:
        raise ConfigError("parties and by split one table; leave them out if every party has its own")
    sources, single, options = name_sources(data, options, by=by, whole=cut)
    if single and not cut and not isinstance(data, str | Path | list):
        raise one_table()
    own = own or {}
    if unknown := sorted(own.keys() - sources.keys()):
        raise DataError(f"own names {unknown[0]!r}, which is no party; use {', '.join(sources)}")
    texts = reading.for_each(list(sources))
    tables, lacking = [], []
    for name, source in sources.items():
        given = {
            "keep": () if by is None else (by,),
            "seed": seed,
            **options,
            **texts[name],
            **own.get(name, {}),
        }
        try:
            with reading_table(name if len(sources) > 1 else None):
                table = read_ratings(source, name=name, **given)
            tables.append(table if single else replace(table, name=name))
        except MissingColumns as error:
            lacking.append(error)
    if lacking:
        raise MissingColumns.join(lacking)
    if single:
        members = split_items(tables[0], parties, seed=seed, by=by)
    else:
        members = parties_from_tables(tables, users)
    check_parties(members)
    return members


def name_sources(
    data: Any, options: Mapping[str, Any], *, by: str | None = None, whole: bool = False
) -> tuple[dict[str, Any], bool, dict[str, Any]]:
    """Return the sources by name, whether there is a single one to cut, and the options without the column of parties.

    `data` are as in `read_parties`; `whole` says that a data frame is one table whatever its columns are.
    """
    if isinstance(data, Mapping):
        if not data:
            raise DataError(_NO_PARTIES)
        return {str(name): table for name, table in data.items()}, False, dict(options)
    if isinstance(data, str | Path | list):
        return *sources_of(data, by=by), dict(options)
    if whole:
        return {"ratings": data}, True, dict(options)
    columns = dict(options.get("columns") or {})
    tables = tables_by_party(data, columns.pop("party", None))
    return tables or {"ratings": data}, tables is None, {**options, "columns": columns}


def one_table() -> DataError:
    """Return the error of a single table without a word on how it becomes parties."""
    return DataError(
        "this is one table, but a federation has several parties. Pass one table per party, "
        '{"film": ..., "books": ...}, or a table with a column "party" (columns={"party": ...} names another one). To divide '
        'one catalogue for an experiment, pass parties=3 or by="genre"'
    )


def sources_of(
    data: str | Path | Sequence[str | Path], *, by: str | None = None
) -> tuple[dict[str, Any], bool]:
    """Return the sources by name, and whether there is a single one to cut rather than one for each party."""
    given = [data] if isinstance(data, str | Path) else list(data)
    if not given:
        remedy = f"use {option('data')} with a file, a folder or a name such as synthetic or ml-1m"
        raise DataError(f"no data given: {remedy}")
    if not all(isinstance(entry, str | Path) for entry in given):
        example = '{"film": frame, "books": frame}'
        raise DataError(f"a list holds paths; give tables by name, for example {example}")
    named = [_named(entry) for entry in given]
    if len(named) == 1 and not named[0][0]:
        source = named[0][1]
        path = None if str(source) == "synthetic" or by is not None else locate(source)
        tables = [] if path is None or path.is_file() or find_layout(path) is not None else list_tables(path)
        if len(tables) < 2:
            return {table_stem(source): source}, True
        named = [("", table) for table in tables]
    names = [name or table_stem(source) for name, source in named]
    _refuse_same_names(names)
    return dict(zip(names, (source for _, source in named), strict=True)), False


def _named(entry: str | Path) -> tuple[str, str | Path]:
    """Return the name, "" if none is given, and the source of NAME=SOURCE."""
    name, equals, file = str(entry).partition("=")
    refuse_address(file)
    if not equals or Path(entry).exists() or not name or "/" in name:
        return "", entry
    if not file:
        raise DataError(f"{option('data')} {entry} has a name but no file: write {entry}FILE")
    return name, file


def _refuse_same_names(names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        remedy = "give them different names, for example NAME=FILE"
        raise DataError(f"two parties are called {twice[0]!r}: {remedy}")
