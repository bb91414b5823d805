"""Organisations with the same users and their own items: by cutting one table, or from one file each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verfedgnn.core.errors import DataError
from verfedgnn.data.ids import find_positions, sort_ids
from verfedgnn.data.pooling import pool_tables, refuse_shared_items
from verfedgnn.data.rating_reader import is_folder_of_tables, list_tables, locate, read_ratings
from verfedgnn.data.ratings import Ratings, format_count
from verfedgnn.data.read_options import DEFAULT_OPTIONS, ReadOptions
from verfedgnn.data.source_address import is_address
from verfedgnn.data.table_sources import table_stem

FEWEST_RATINGS = 20
"""A value of a column with fewer ratings than this is no party of its own."""
LONGEST_NAME = 100
"""Characters of a party's name; it travels in messages and becomes file names."""


@dataclass(frozen=True, eq=False)
class PartyData:
    """An organisation's data; all parties share one array of user ids, the items are the party's own."""

    name: str
    ratings: Ratings

    def __repr__(self) -> str:
        return f"<PartyData {self.name}: {self.ratings.summary()}>"


def split_items(
    ratings: Ratings, parties: int | None = None, *, seed: int = 0, by: str | None = None
) -> list[PartyData]:
    """Cut a table by items: at random into `parties` (10) groups whose sizes differ by at most one, or by a column.

    With `by` (e.g. "genre") there is one party per value, or with `parties` so many: the values with most ratings, and the
    rest together as "other"; items without a value go to "unknown". All users of the table are users of every party, with or
    without ratings there.
    """
    if by is None:
        parties = 10 if parties is None else parties
        if not 1 <= parties <= ratings.n_items:
            raise DataError(
                f"{ratings.n_items:,} items cannot go to {parties} parties: use --parties from 1 to {ratings.n_items}"
            )
        order = np.random.default_rng(seed).permutation(ratings.n_items)
        width = len(str(parties - 1))
        groups = {
            f"party-{k:0{width}}": np.sort(part) for k, part in enumerate(np.array_split(order, parties))
        }
    else:
        if by not in ratings.columns:
            there = ", ".join(ratings.columns) or "none"
            raise DataError(f"{ratings.name} has no item column {by!r} to split by: there is {there}")
        values = ratings.columns[by]
        names, code = np.unique(np.where(values == "", "unknown", values), return_inverse=True)
        rated = np.bincount(code[ratings.item], minlength=len(names))
        small = _too_small(rated)
        if parties is not None and parties < len(names) - len(small) + bool(small):
            small = set(np.argsort(-rated, kind="stable")[max(1, parties) - 1 :].tolist())
        groups = {str(name): np.flatnonzero(code == k) for k, name in enumerate(names) if k not in small}
        if small:
            groups["other"] = np.flatnonzero(np.isin(code, sorted(small)))
            merged = ", ".join(str(names[k]) for k in sorted(small))
            why = "too few ratings for a party each, " if parties is None else ""
            ratings = ratings.with_notes(f"{merged}: {why}put together as 'other'")
    return [
        PartyData(name, replace(ratings.select_items(index), name=name)) for name, index in groups.items()
    ]


def _too_small(rated: NDArray[np.int64]) -> set[int]:
    """Groups to be put together: those with fewer than `FEWEST_RATINGS`, and the next larger one if that is still too few.

    Where all groups are small, nobody is; tiny tables are cut as asked.
    """
    order = np.argsort(rated, kind="stable").tolist()
    small = {k for k in order if rated[k] < FEWEST_RATINGS}
    if not small or len(small) == len(order):
        return set()
    if len(small) == 1 or sum(rated[k] for k in small) < FEWEST_RATINGS:
        small.add(next(k for k in order if k not in small))
    return small


def parties_from_files(
    files: Mapping[str, str | Path] | Sequence[str | Path],
    *,
    own: Mapping[str, Mapping[str, Any]] | None = None,
    **options: Any,
) -> list[PartyData]:
    """One party per file or database, named by the mapping's keys or the files' stems, aligned to the users in every one.

    `options` are those of `read_ratings`; `own` has further ones for single parties, by name.

    Parties on one scale (the highest ratings within a factor of two) share it, from the lowest to the highest rating at any of
    them; a party whose stars mean something else (5 against 10) keeps its own. A given `scale` is everybody's.
    """
    named = (
        list(files.items()) if isinstance(files, Mapping) else [(table_stem(file), file) for file in files]
    )
    if not named:
        raise _no_parties()
    _refuse_same_names([name for name, _ in named])
    tables = [
        replace(read_ratings(file, **{**options, **(own or {}).get(name, {})}), name=name)
        for name, file in named
    ]
    return parties_from_tables(tables)


def parties_from_tables(tables: Sequence[Ratings]) -> list[PartyData]:
    """One party per table, of its name; on shared scales (see `parties_from_files`) and aligned to the users in every one."""
    if not tables:
        raise _no_parties()
    highest = max(table.scale[1] for table in tables)
    # Where nothing is above 0, a half of the highest is no less than it, and nothing tells scales apart.
    alike = [highest <= 0 or table.scale[1] > highest / 2 for table in tables]
    shared = (min(table.scale[0] for table, same in zip(tables, alike, strict=True) if same), highest)
    scales = [shared if same else table.scale for table, same in zip(tables, alike, strict=True)]
    return align_users([PartyData(t.name, replace(t, scale=s)) for t, s in zip(tables, scales, strict=True)])


def align_users(parties: Sequence[PartyData]) -> list[PartyData]:
    """The parties with only the users they have in common, in one order; each party's notes say what was dropped."""
    if not parties:
        raise _no_parties()
    common = parties[0].ratings.user_ids
    for party in parties[1:]:
        common = common[find_positions(common, party.ratings.user_ids) >= 0]
    if not len(common):
        names = ", ".join(party.name for party in parties)
        raise DataError(f"no user is at every one of {names}: check that they write user ids in the same way")
    users = sort_ids(common)
    return [PartyData(party.name, _restricted(party.ratings, users)) for party in parties]


def _restricted(ratings: Ratings, users: np.ndarray[Any, np.dtype[np.str_]]) -> Ratings:
    kept = replace(ratings.select_users(find_positions(users, ratings.user_ids)), user_ids=users)
    dropped = ratings.n_users - len(users)
    if not dropped:
        return kept
    return kept.with_notes(
        f"kept {len(users):,} of {ratings.n_users:,} users, dropped {format_count(dropped, 'user')} with"
        f" {format_count(len(ratings) - len(kept), 'rating')} that are not at every party"
    )


def check_parties(parties: Sequence[PartyData]) -> None:
    """Raise `DataError` unless these parties can form a federation."""
    if not parties:
        raise _no_parties()
    _refuse_same_names([party.name for party in parties])
    for party in parties:
        if not 1 <= len(party.name) <= LONGEST_NAME or not party.name.isprintable():
            raise DataError(
                f"a party's name is 1 to {LONGEST_NAME} printable characters, not {party.name[:40]!r}: rename it"
            )
    users = parties[0].ratings.user_ids
    if not len(users):
        raise DataError("the parties have no user in common: check that they write user ids in the same way")
    rated = np.zeros(len(users), bool)
    for party in parties:
        table = party.ratings
        if not table.n_items or not len(table):
            lack = "ratings" if table.n_items else "items"
            raise DataError(f"party {party.name!r} has no {lack}: leave it out or give it some")
        if not np.array_equal(table.user_ids, users):
            raise DataError(
                f"parties {parties[0].name!r} and {party.name!r} have different users: bring them together with align_users"
            )
        rated[table.user] = True
    if not rated.all():
        idle = int((~rated).sum())
        first = str(users[int(np.argmin(rated))])
        raise DataError(
            f"{format_count(idle, 'user')} without a rating at any party, first {first!r}: remove them from the user ids"
        )
    refuse_shared_items([replace(party.ratings, name=party.name) for party in parties])


def pool_parties(parties: Sequence[PartyData], column: str = "party") -> Ratings:
    """All parties' ratings in one table, as if they were one organisation; the item column `column` names the party."""
    if not parties:
        raise _no_parties()
    tables = [replace(party.ratings, name=party.name) for party in parties]
    return pool_tables(tables, column, "+".join(table.name for table in tables))


def read_parties(
    data: str | Path | Sequence[str | Path],
    *,
    parties: int | None = None,
    seed: int = 0,
    by: str | None = None,
    reading: ReadOptions = DEFAULT_OPTIONS,
    **options: Any,
) -> list[PartyData]:
    """From what stands on the command line to checked parties.

    One path, address or name is read and its items are split (`parties`, `seed`, `by`). Several, each `SOURCE` or
    `NAME=SOURCE`, are one party each; so is each table of a folder without a publisher's layout, unless `by` is given.
    `reading` says how to read them, all or single ones; `options` are those of `read_ratings` for all.
    """
    sources, single = sources_of(data, by=by)
    own = reading.for_each(list(sources))
    if single:
        ((name, source),) = sources.items()
        options = {**options, **own[name], "keep": () if by is None else (by,)}
        found = split_items(read_ratings(source, seed=seed, **options), parties, seed=seed, by=by)
    else:
        found = parties_from_files(sources, own=own, seed=seed, **options)
    check_parties(found)
    return found


def sources_of(
    data: str | Path | Sequence[str | Path], *, by: str | None = None
) -> tuple[dict[str, str | Path], bool]:
    """Where ratings come from, by name, and whether that is one table to be cut rather than one source a party."""
    given = [data] if isinstance(data, str | Path) else list(data)
    if not given:
        raise DataError(
            "no data given: use --data with a file, a folder or a name such as synthetic or ml-1m"
        )
    named = [_named(entry) for entry in given]
    if len(named) == 1 and named[0][0] is None:
        source = named[0][1]
        whole = str(source) == "synthetic" or is_address(source) or by is not None
        if whole or not is_folder_of_tables(locate(source)):
            return {table_stem(source): source}, True
        named = [(None, table) for table in list_tables(locate(source))]
    names = [name or table_stem(source) for name, source in named]
    _refuse_same_names(names)
    return dict(zip(names, (source for _, source in named), strict=True)), False


def _named(entry: str | Path) -> tuple[str | None, str | Path]:
    name, equals, file = str(entry).partition("=")
    if not equals or Path(entry).exists() or not name or "/" in name:
        return None, entry
    if not file:
        raise DataError(f"--data {entry} names no file: write {entry}FILE")
    return name, file


def _no_parties() -> DataError:
    return DataError("there are no parties: give at least one file or table")


def _refuse_same_names(names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"two parties are called {twice[0]!r}: name them apart with --data NAME=FILE")
