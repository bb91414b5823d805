"""Sources of ratings as texts: options for reading them.

`--columns user=uid,item=isbn` applies to every source, `--columns books:user=uid,item=isbn` to the source called books. The same
holds for `--events`, `--encoding` and the others. An option for one source takes precedence.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from verfedgnn.core.errors import DataError
from verfedgnn.core.option_names import option

EventWeights = Mapping[str, float] | float
"""Weight of an event, by its kind, or one weight for all kinds."""


class ReadOptions(tuple[tuple[str, str], ...]):
    """Options of `read_ratings`, each a name and a text. It is hashable, so that it can be part of a cache key."""

    @classmethod
    def from_texts(cls, **texts: Sequence[str] | None) -> "ReadOptions":
        """Create options from command-line texts, with None for absent options."""
        return cls((name, text) for name, given in texts.items() for text in given or ())

    def to_arguments(self) -> list[str]:
        """Return the options as command-line arguments."""
        return [word for name, text in self for word in (f"--{name}", text)]

    def for_each(self, sources: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return the keyword arguments of `read_ratings` for each of the named sources."""
        common: dict[str, Any] = {}
        single: dict[str, dict[str, Any]] = {source: {} for source in sources}
        for name, text in self:
            source, colon, value = text.partition(":")
            if colon and source in single:
                given, twice = single[source], f" for {source}; leave one out"
            elif colon and re.fullmatch(r"[\w.-]+", source):
                raise DataError(
                    f"--{name} {source}:... names an unknown source; use one of: {', '.join(sources)}"
                )
            else:
                given, twice = common, f"; name the source of each, for example --{name} {sources[0]}:..."
                value = text
            if name in given:
                raise DataError(f"--{name} is given twice{twice}")
            given[name] = _PARSERS.get(name, str)(value)
        return {source: common | given for source, given in single.items()}


DEFAULT_OPTIONS = ReadOptions()
"""No options given: every source is read with the defaults."""


def _parse_columns(text: str) -> dict[str, str]:
    pairs = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
    if len(pairs) != len(text.split(",")):
        raise DataError(f"--columns takes user=...,item=...,rating=..., not '{text}'")
    return pairs


def _parse_scale(text: str) -> tuple[float, float]:
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise DataError(
            f"--scale takes the lowest and the highest rating, for example 1,5, not '{text}'"
        ) from None
    return low, high


def _parse_catalogue(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not int(text):
        raise DataError(f"--catalogue takes the number of items, for example 30000, not '{text}'")
    return int(text)


def parse_events(text: str) -> EventWeights:
    """Parse `view=1,purchase=5`, or one number for all rows."""
    try:
        pairs = [part.rpartition("=") for part in text.split(",")]
        one = len(pairs) == 1 and not pairs[0][1]
        weights = float(text) if one else {kind.strip(): float(weight) for kind, _, weight in pairs}
    except ValueError:
        raise DataError(
            f"--events takes weights such as view=1,purchase=5, or one number, not '{text}'"
        ) from None
    return check_events(weights)


def check_events(events: EventWeights) -> EventWeights:
    """Return the weights if they are valid, else raise `DataError`."""
    weights = list(events.values() if isinstance(events, Mapping) else [events])
    valid = any(weights) and all(math.isfinite(weight) and weight >= 0 for weight in weights)
    if not valid or (isinstance(events, Mapping) and "" in events):
        raise DataError(
            f"{option('events')} needs a weight above 0 for at least one kind of event (with 5, one event is a like); "
            "use 0 for kinds to leave out"
        )
    return events


_PARSERS: dict[str, Callable[[str], Any]] = {
    "columns": _parse_columns,
    "events": parse_events,
    "scale": _parse_scale,
    "catalogue": _parse_catalogue,
}
