"""Sources of ratings as texts: options for reading them.

`--columns user=uid,item=isbn` applies to every source, `--columns books:user=uid,item=isbn` to the source called books. The same
holds for `--events`, and `--read encoding=latin-1` becomes `--read books:encoding=latin-1`. An option for one source takes precedence.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from verfedgnn.core.errors import DataError
from verfedgnn.core.option_names import READ, option

EventWeights = Mapping[str, float] | float
"""Weight of an event, by its kind, or one weight for all kinds."""


class ReadOptions(tuple[tuple[str, str], ...]):
    """Options of `read_ratings` as on the command line, each a name and a text. It is hashable, so that it can be part of a cache key."""

    @classmethod
    def from_texts(cls, **texts: Sequence[str] | None) -> "ReadOptions":
        """Create options from the texts of each, with None for absent options."""
        return cls((name, text) for name, given in texts.items() for text in given or ())

    def to_arguments(self) -> list[str]:
        """Return the options as command-line arguments."""
        return [word for name, text in self for word in (f"--{name}", text)]

    def for_each(self, sources: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return the keyword arguments of `read_ratings` for each of the named sources."""
        common: dict[str, Any] = {}
        single: dict[str, dict[str, Any]] = {source: {} for source in sources}
        for flag, text in self:
            name, source, value = _split(flag, text, sources)
            pattern = f"--read %s{name}=..." if name in READ else f"--{name} %s..."
            written = pattern % (f"{source}:" if source else "")
            if source and source not in single:
                raise DataError(f"{written} names an unknown source; use one of: {', '.join(sources)}")
            given = single[source] if source else common
            if name in given:
                each = f"name the source of each, for example {pattern % f'{sources[0]}:'}"
                raise DataError(f"{written} is given twice; {'leave one out' if source else each}")
            given[name] = _parse(name, value)
        return {source: common | given for source, given in single.items()}


def _split(flag: str, text: str, sources: Sequence[str]) -> tuple[str, str, str]:
    """Return the name of an option, its source, "" for all, and its value."""
    if flag == "read":
        head, equals, value = text.partition("=")
        source, _, name = head.rpartition(":")
        if not equals or name not in READ:
            raise DataError(f"--read takes NAME=VALUE with one of the names {', '.join(READ)}, not '{text}'")
        return name, source, value
    source, colon, value = text.partition(":")
    named = colon and (source in sources or re.fullmatch(r"[\w.-]+", source))
    return (flag, source, value) if named else (flag, "", text)


DEFAULT_OPTIONS = ReadOptions()


def _parse(name: str, text: str) -> Any:
    parse, example = _PARSERS.get(name, (str, ""))
    try:
        return parse(text)
    except DataError:
        raise
    except ValueError:
        raise DataError(f"--{'read ' * (name in READ)}{name} takes {example}, not '{text}'") from None


def _parse_scale(text: str) -> tuple[float, float]:
    low, high = map(float, text.split(","))
    return low, high


def _parse_catalogue(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not int(text):
        raise ValueError(text)
    return int(text)


def parse_events(text: str) -> EventWeights:
    """Parse `view=1,purchase=5`, or one number for all rows."""
    if "=" not in text:
        return check_events(float(text))
    pairs = [part.rpartition("=") for part in text.split(",")]
    return check_events({kind.strip(): float(weight) for kind, _, weight in pairs})


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


_PARSERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "columns": (
        lambda text: dict(part.split("=", 1) for part in text.split(",")),
        "user=...,item=...,rating=...",
    ),
    "events": (parse_events, "weights such as view=1,purchase=5, or one number"),
    "scale": (_parse_scale, "the lowest and the highest rating, for example scale=1,5"),
    "catalogue": (_parse_catalogue, "the number of items, for example catalogue=30000"),
}
