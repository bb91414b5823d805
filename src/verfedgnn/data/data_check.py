"""Checks of sources of ratings: every kind of problem with its first places, the overlap of users, and what a training will meet.

A source is usable exactly when `read_ratings` with the same options reads it. Everything else is a warning.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verfedgnn.core.errors import DataError, MissingColumns
from verfedgnn.core.option_names import option, worded
from verfedgnn.data.ids import StrArray, find_stranger
from verfedgnn.data.rating_checks import SHOWN, DataProblem, RowReport
from verfedgnn.data.rating_reader import read_ratings
from verfedgnn.data.ratings import Mask, Ratings, count_rows, format_count
from verfedgnn.data.value_parsing import EARLIEST, latest_plausible_time

FEW = 5
"""Number of ratings below which little can be learnt about a user."""
MOST_RATIO = 1.5
FEWEST_SHARED = 0.5
"""Share of users at two or more parties below which the overlap is called small."""
FEWEST_RATINGS = 30
"""Ratings of a party below which its validation or test part may be empty, so that `train` refuses it."""
FEWEST_USERS = 20
PARTIES = 10
"""Parties among which `train` divides the items of one source by default."""
_VALUES = 11


@dataclass(frozen=True)
class Distribution:
    """Summary of a table of ratings."""

    ratings: int
    users: int
    items: int
    lowest: float
    highest: float
    mean: float
    likes: int
    """Number of ratings in the upper quarter of the scale."""
    values: tuple[tuple[str, int], ...]
    """Count of each rating, or of ten equal bins if there are many different ratings."""
    first: str | None
    last: str | None
    """Day of the last rating; like that of the first, None without times."""


@dataclass(frozen=True, eq=False)
class CheckedSource:
    """A source of ratings and the result of its check."""

    name: str
    source: str
    unit: str
    """Unit of the problems' places: "line" for text files, "position" for tables in memory, "row" for everything else."""
    problems: tuple[DataProblem, ...]
    notes: tuple[str, ...]
    shape: Distribution | None
    users: StrArray = field(default_factory=lambda: np.zeros(0, np.str_))
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """Number of ratings of each of the distinct `users`."""
    columns: tuple[str, ...] = ()
    """Values of `--columns` that make an unreadable source readable, if they can be guessed."""

    @property
    def usable(self) -> bool:
        """Whether the source can be read."""
        return not any(problem.fatal for problem in self.problems)


@dataclass(frozen=True)
class OverlapRegion:
    """The users who are at exactly these parties."""

    parties: tuple[str, ...]
    users: int
    ratings: int


@dataclass(frozen=True)
class UserOverlap:
    """How the users of several sources overlap."""

    parties: int
    regions: tuple[OverlapRegion, ...]
    """Every combination of parties that has users, the largest first."""

    @property
    def shared(self) -> int:
        """Number of users at two or more parties."""
        return self.count_from(2)[0]

    def count_from(self, fewest: int) -> tuple[int, int]:
        """Return how many users are at `fewest` or more parties, and how many ratings they have."""
        chosen = [region for region in self.regions if len(region.parties) >= fewest]
        return sum(region.users for region in chosen), sum(region.ratings for region in chosen)

    def count_rules(self) -> dict[str, tuple[int, int]]:
        """Return the users and the ratings that take part under each rule of `--users`."""
        return {"all": self.count_from(self.parties), "2": self.count_from(2), "any": self.count_from(1)}


def check_source(name: str, source: Any, **options: Any) -> CheckedSource:
    """Check one source with the options of `read_ratings`: a path or a name, or a table in memory."""
    shown = str(source) if isinstance(source, str | Path) else "in memory"
    report, catalogue, unit = RowReport(), options.pop("catalogue", None), "row"
    try:
        ratings = read_ratings(source, name=name, report=report, **options)
    except DataError as error:
        problem = DataProblem("unreadable", str(error), "", 1, fatal=True)
        flags = error.flags if isinstance(error, MissingColumns) else ()
        return CheckedSource(name, shown, unit, (problem,), (), None, columns=flags)
    problems = [*report.problems, *_find_warnings(ratings, report)]
    if report.table is not None:
        unit, text = report.table.unit, report.table.text
        shown = shown if text is None else str(text.path)
        rows = sorted({row for problem in problems for row in problem.places})
        number = report.table.number_rows(rows, report.broken)
        problems = [replace(p, places=tuple(number[row] for row in p.places)) for p in problems]
        if text is not None and report.broken:
            said = format_count(len(report.broken), "line")
            said += f" {'has' if len(report.broken) == 1 else 'have'} too few or too many fields"
            remedy = (
                f"correct them, or name the delimiter with {option('delimiter')} (now {text.delimiter!r})"
            )
            lines = tuple(text.lines(report.broken[:SHOWN]).values())
            problems.insert(0, DataProblem("broken", said, remedy, len(report.broken), lines, fatal=True))
    if catalogue is not None and ratings.n_items > catalogue:
        said = f"{ratings.n_items:,} items have ratings, more than the declared catalogue of {catalogue:,}"
        problems.append(
            DataProblem("catalogue", said, f"declare a larger {option('catalogue')}", 1, fatal=True)
        )
    counts = np.bincount(ratings.user, minlength=ratings.n_users)
    shape, notes = describe_ratings(ratings), ratings.notes
    return CheckedSource(name, shown, unit, tuple(problems), notes, shape, ratings.user_ids, counts)


def describe_ratings(table: Ratings) -> Distribution | None:
    """Describe ratings; return None if there are none.

    Times before 1990 or in the future are probably mistakes. They are left out unless all times are like that.
    """
    rating, time = table.rating, table.time
    if not len(rating):
        return None
    first = last = None
    if time is not None:
        likely = (time >= EARLIEST) & (time <= latest_plausible_time())
        days = (time[likely] if likely.any() else time).astype("datetime64[s]").astype("datetime64[D]")
        first, last = str(days.min()), str(days.max())
    stars, counts = np.unique(rating, return_counts=True)
    labels = [f"{value:g}" for value in stars]
    if len(stars) > _VALUES:
        counts, edges = np.histogram(rating, 10)
        labels = [f"{low:.3g} to {high:.3g}" for low, high in pairwise(edges)]
    sizes = (len(rating), len(np.unique(table.user)), len(np.unique(table.item)))
    figures = (float(rating.min()), float(rating.max()), float(rating.mean(dtype=np.float64)))
    values = tuple(zip(labels, counts.tolist(), strict=True))
    return Distribution(*sizes, *figures, table.likes, values, first, last)


def measure_overlap(sources: Sequence[CheckedSource]) -> UserOverlap:
    """Compare the ids of several sources, in the clear."""
    users, codes = np.unique(np.concatenate([source.users for source in sources]), return_inverse=True)
    member, ratings = np.zeros((len(users), len(sources)), bool), np.zeros(len(users), np.int64)
    ends = np.cumsum([len(source.users) for source in sources])
    for party, (source, numbers) in enumerate(zip(sources, np.split(codes, ends[:-1]), strict=True)):
        member[numbers, party] = True
        ratings[numbers] += source.counts
    at, region_of = np.unique(member, axis=0, return_inverse=True)
    count = np.bincount(region_of.ravel(), minlength=len(at)).tolist()
    rated = np.bincount(region_of.ravel(), ratings, minlength=len(at)).astype(np.int64).tolist()
    names = [tuple(sources[p].name for p in np.flatnonzero(row).tolist()) for row in at]
    regions = sorted(map(OverlapRegion, names, count, rated), key=lambda at: (-at.users, len(at.parties)))
    return UserOverlap(len(sources), tuple(regions))


def _find_warnings(table: Ratings, report: RowReport) -> list[DataProblem]:
    """Find problems of usable ratings that are likely to be mistakes or to reduce accuracy, in all rows of repeated pairs."""
    every, row_of = report.accepted or table, report.rows
    rating, time = every.rating, every.time
    if not len(rating):
        return []
    warnings = []

    def warn(kind: str, mask: Mask, what: str, remedy: str) -> None:
        if count := int(mask.sum()):
            places = row_of[np.flatnonzero(mask)[:SHOWN]] if len(row_of) else row_of
            warnings.append(DataProblem(kind, count_rows(count, what), remedy, count, tuple(places.tolist())))

    low, high = float(rating.min()), float(rating.max())
    if table.scale[0] == table.scale[1] and len(rating) > 1:
        text = f"all ratings are {low:g}, so each is a like and only lists are trained"
        warnings.append(DataProblem("all-equal", text, "", len(rating)))
    elif low == 0 < high and float(rating[rating > 0].min()) >= 1:
        what = "have the rating 0, where the others begin at 1 or more"
        warn("zeros", rating == 0, what, "if 0 means 'not rated', remove them")
    if time is not None:
        late, early = time > latest_plausible_time(), time < EARLIEST
        warn("future", late, "have a time in the future", "check the unit and the zone of times")
        remedy = "check that times are seconds or milliseconds since 1970"
        warn("early", early, "have a time before 1990", remedy)
    counts = np.bincount(table.user)
    few, everybody = int(((counts > 0) & (counts < FEW)).sum()), int((counts > 0).sum())
    if few:
        share = f"({100 * few / everybody:.0f} %) {'has' if few == 1 else 'have'}"
        text = f"{few:,} of {format_count(everybody, 'user')} {share} fewer than {FEW} ratings"
        warnings.append(DataProblem("few-ratings", text, "little can be learnt about them alone", few))
    return warnings


# -- what a training will meet -------------------------------------------------------------------------------------------------


def foresee(sources: Sequence[CheckedSource], overlap: UserOverlap | None) -> list[str]:
    """Return warnings about a training with these sources, each with its remedy; `overlap` is that of several sources."""
    if not all(source.usable for source in sources):
        return []
    warnings = []
    shapes = [(source.name, source.shape) for source in sources if source.shape is not None]
    for name, shape in shapes:
        if shape.ratings < FEWEST_RATINGS:
            what = "its validation or test part may be empty, and training refuses that"
            warnings.append(f"{name} has {format_count(shape.ratings, 'rating')}: {what}; add ratings")
        elif shape.users < FEWEST_USERS:
            what = "training runs, but its figures say nothing about other users"
            warnings.append(f"{name} has {format_count(shape.users, 'user')}: {what}; add users")
        if not shape.likes:
            what = "a rating in the upper quarter of its scale: no lists are trained"
            remedy = f"declare its scale with {option('scale', (1, 5))} if it is wider than its ratings"
            warnings.append(f"{name} has no like, {what}; {remedy}")
    parties = fitting_parties(sources)
    if parties is not None:
        _, shape = shapes[0]
        had = f"{format_count(shape.items, 'item')} with {format_count(shape.ratings, 'rating')}"
        advice = f"pass {option('parties', parties)} to {worded('`train`', '`fit`')}"
        warnings.append(f"{had} are too few for {PARTIES} parties: {advice}")
    if overlap is None:
        return warnings
    if len(sources) == 2:
        warnings.append(
            "there are two parties: either can subtract its own part from a sum, so both add noise; with a third "
            "party, masks hide more than noise does"
        )
    scales = sorted(
        (s.highest - s.lowest, f"{name} rates from {s.lowest:g} to {s.highest:g}") for name, s in shapes
    )
    scales = [scale for scale in scales if scale[0] > 0]
    if scales and scales[-1][0] > MOST_RATIO * scales[0][0]:
        remedy = worded("--read NAME:scale=LOW,HIGH", option("own", {"...": {"scale": (1, 5)}}))
        warnings.append(
            f"{scales[0][1]}, {scales[-1][1]}: errors are in each party's own unit, so compare parties, not the overall RMSE; "
            f"declare both scales with {remedy}"
        )
    users, _ = overlap.count_from(1)
    if overlap.shared and overlap.shared < FEWEST_SHARED * users:
        warnings.append(
            f"{users - overlap.shared:,} of {users:,} users are at one party only: they take part and are served, but only shared users "
            f"connect the parties; look at the lift by other parties ({worded('`verfedgnn lift RUN`', '`lift()`')})"
        )
    return warnings


def fitting_parties(sources: Sequence[CheckedSource]) -> int | None:
    """Return how many parties the items of one source can be divided among; None if the default fits."""
    shape = sources[0].shape
    if len(sources) > 1 or shape is None:
        return None
    most = min(shape.items, shape.ratings // FEWEST_RATINGS)
    return None if most >= PARTIES else max(1, most)


def conclude(
    sources: Sequence[CheckedSource], overlap: UserOverlap | None, named: bool = False
) -> tuple[bool, bool, str]:
    """Return whether these sources are usable and whether they are doubtful, and what a training does with them, or why it refuses them.

    `named` says that one table was given as one party by name, which `fit` does not divide.
    """
    broken = [source for source in sources if not source.usable]
    parties = fitting_parties(sources) or PARTIES
    refusal = ""
    stranger = overlap and find_stranger({source.name: source.users for source in sources})
    if broken:
        names = " and ".join(source.name for source in broken)
        first = next(problem.text for problem in broken[0].problems if problem.fatal)
        reason = first.removeprefix(f"{broken[0].name}: ").partition("; ")[0]
        refusal = f"{names} cannot be used ({reason}). Correct it as the errors say, then check again."
    elif stranger:
        refusal = f"{stranger}. Then check again."
    elif named and len(sources) == 1:
        refusal = (
            f"'{sources[0].name}' is the only party and joining needs two or more. Pass one table per party, or try it on "
            f"one catalogue with `fit(table, parties={parties})`."
        )
    if refusal:
        return False, False, f"This cannot be trained, because {refusal}"
    small = [s.name for s in sources if s.shape is not None and s.shape.ratings < FEWEST_RATINGS]
    if small:
        reason = f"{small[0]} has fewer than {FEWEST_RATINGS} ratings"
        text = f"A training may refuse this, because {reason}. Add ratings, then check again."
    elif any(source.shape is not None and source.shape.likes == source.shape.ratings for source in sources):
        text = "A source has likes and no ratings, so no stars are predicted: training learns lists, from the likes of all."
    elif overlap is None:
        text = worded(
            f"One source: `train` divides its items at random among parties ({parties} here), which simulates a federation. "
            "Use `--by COLUMN`, or one source per party, for parties that exist.",
            f"One table: `fit(table, parties={parties})` divides its items at random among parties, which simulates a federation. "
            "Pass one table per party for parties that exist.",
        )
    else:
        users, _ = overlap.count_from(1)
        text = (
            f"{len(sources)} sources can be trained together: {overlap.shared:,} of {users:,} users "
            f"({100 * overlap.shared / users:.0f} %) are at two or more parties, and the others take part as well."
        )
    return True, bool(small), text
