"""Conversion of implicit events (views, purchases, plays) to ratings, by a rule that uses only the events of a pair.

With n_k events of kind k and weight w_k, a user's interest in an item is s = sum_k w_k n_k, and its rating is

    r = low + (high - low) (1 - 4^(-s / 5)),    on the scale 1 to 5:  r = 5 - 4^(1 - s / 5).

No event gives 1. A total weight of 5 (one purchase at 5, five views at 1) gives 4, from which items count as liked
(`model.threshold`); each further 5 covers three quarters of the distance to 5. The rating grows with every event and every
weight, and saturates. It depends neither on the order of rows nor on other users, so each organisation can apply the rule alone.
"""

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from verfedgnn.core.errors import DataError
from verfedgnn.core.option_names import option
from verfedgnn.data.ids import number_ids, sort_numbered
from verfedgnn.data.rating_checks import fill_in, find_absent, first_per_item, note_left_out, used_ids
from verfedgnn.data.ratings import Ratings, format_count
from verfedgnn.data.read_options import EventWeights, check_events
from verfedgnn.data.value_parsing import NO_TIME, note_missing_times, parse_times

FULL = 5.0
"""Total weight of events from which an item counts as liked, at three quarters of the scale."""


def required_columns(events: EventWeights | None) -> tuple[str, ...]:
    """Return the columns that a table of ratings or of events must have."""
    if events is None:
        return ("user", "item", "rating")
    return ("user", "item", "event") if isinstance(events, Mapping) else ("user", "item")


def rate_strength(strength: NDArray[np.float64], scale: tuple[float, float] = (1, 5)) -> NDArray[np.float64]:
    """Return the rating for the total weight of a pair's events."""
    low, high = scale
    return low + (high - low) * (1 - 4.0 ** (-strength / FULL))


def rate_events(
    rows: pa.Table,
    events: EventWeights,
    *,
    scale: tuple[float, float] = (1, 5),
    name: str,
    missing: str = "error",
    where: Callable[[int], str],
) -> Ratings:
    """Return one rating for each pair of a user and an item with events, in the order of ids.

    Its time is that of the newest event. `rows` have the columns user and item, event if weights depend on the kind, and
    optionally time and item columns. Rows without one of the first three are an error, or left out if `missing` is "drop".
    """
    check_events(events)
    coded = {role: number_ids(rows[role], role) for role in required_columns(events)}
    kept = np.ones(rows.num_rows, bool)
    for role, (codes, ids) in coded.items():
        absent = find_absent(codes, ids)
        if missing != "drop" and absent.any():
            raise DataError(f"an event has no {role} in {where(int(absent.argmax()))}: {fill_in()}")
        kept &= ~absent
    dropped = int((~kept).sum())
    if not kept.any():
        raise DataError(f"{name} has no events; give a table with at least one row")
    ignored = 0
    weight = None
    if isinstance(events, Mapping):
        kinds, words = coded["event"]
        weights = _find_weights(np.bincount(kinds[kept], minlength=len(words)), words.to_pylist(), events)
        # The appended entry is for rows without a kind.
        used = np.append(np.array(weights) > 0, False)[kinds] & kept
        ignored = int(kept.sum() - used.sum())
        kept = used
        weight = np.array(weights)
        if not kept.any():
            raise DataError(
                f"{name} has only events with weight 0; give one of their kinds a weight above 0 with {option('events')}"
            )
    user, user_ids = sort_numbered(*used_ids(coded["user"][0][kept], coded["user"][1]))
    item, item_ids = sort_numbered(*used_ids(coded["item"][0][kept], coded["item"][1]))
    pair, group = np.unique(user.astype(np.int64) * len(item_ids) + item, return_inverse=True)
    if weight is None:
        strength = float(events) * np.bincount(group).astype(np.float64)  # type: ignore[arg-type]
    else:
        strength = _add_up(coded["event"][0][kept], weight, coded["event"][1].to_pylist(), group, len(pair))
    time, notes = _find_newest(rows, kept, group, len(pair))
    if dropped:
        notes = (note_left_out(dropped, "no user, item or event"), *notes)
    about = [n for n in rows.column_names if n not in ("user", "item", "event", "time", "rating")]
    per_item = {key: first_per_item(rows[key], key, item, len(item_ids), kept) for key in about}
    left = f", {format_count(ignored, 'event')} left out" if ignored else ""
    became = f"{format_count(len(group), 'event')} became {format_count(len(pair), 'rating')}"
    return Ratings(
        user=(pair // len(item_ids)).astype(np.int32),
        item=(pair % len(item_ids)).astype(np.int32),
        rating=rate_strength(strength, scale).astype(np.float32),
        user_ids=user_ids,
        item_ids=item_ids,
        time=time,
        titles=per_item.pop("title", None),
        columns=per_item,
        scale=(float(scale[0]), float(scale[1])),
        scale_declared=True,
        name=name,
        notes=(f"{became} ({option('events', events)}){left}", *notes),
    )


def _find_weights(counts: NDArray[np.int64], words: list[str], events: Mapping[str, float]) -> list[float]:
    """Return the weight of each kind; raise `DataError` if one that occurs has none."""
    unknown = {word: int(n) for word, n in zip(words, counts, strict=True) if n and word not in events}
    if unknown:
        kinds = sorted(unknown, key=lambda kind: (-unknown[kind], kind))
        shown = [f"{kind[:30]} ({unknown[kind]:,})" for kind in kinds[:8]] + ["..."] * (len(kinds) > 8)
        raise DataError(
            f"{option('events')} has no weight for these kinds: {', '.join(shown)}; add them, with 0 to leave them out, for"
            f" example {option('events', {**events, kinds[0][:30]: 0})}"
        )
    return [float(events.get(word, 0)) for word in words]


def _add_up(
    kinds: NDArray[np.int32],
    weights: NDArray[np.float64],
    words: list[str],
    group: NDArray[np.int64],
    pairs: int,
) -> NDArray[np.float64]:
    """Return the total weight of each pair's events. Kinds are added by name, so the order of rows changes no bit."""
    strength = np.zeros(pairs)
    for code in sorted(range(len(words)), key=words.__getitem__):
        if weights[code]:
            strength += weights[code] * np.bincount(group[kinds == code], minlength=pairs)
    return strength


def _find_newest(
    rows: pa.Table, kept: NDArray[np.bool_], group: NDArray[np.int64], pairs: int
) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
    """Return the newest time of each pair's events; None if times cannot be read or a pair has none."""
    if "time" not in rows.column_names:
        return None, ()
    time, notes = parse_times(rows["time"], ~kept, gaps=True)
    if time is None:
        return None, notes
    newest = np.full(pairs, NO_TIME)
    np.maximum.at(newest, group, time[kept])
    without = int((newest == NO_TIME).sum())
    return (None, (note_missing_times(without),)) if without else (newest, notes)
