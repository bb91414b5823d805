"""Sources of ratings as texts: options for reading them.

`--columns user=uid,item=isbn` applies to every source, `--columns books:user=uid,item=isbn` to the source called books. The same
holds for `--events`, `--encoding` and the others. An option for one source takes precedence.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from verfedgnn.core.errors import DataError
from verfedgnn.core.option_names import option

EventWeights = Mapping[str, float] | float
"""Weight of an event, by its kind, or one weight for all kinds."""


@dataclass(frozen=True)
class ReadOptions:
    """Options of `read_ratings` as texts. The class is hashable, so that it can be part of a cache key."""

    columns: tuple[str, ...] = ()
    events: tuple[str, ...] = ()
    duplicates: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    encoding: tuple[str, ...] = ()
    delimiter: tuple[str, ...] = ()
    scale: tuple[str, ...] = ()
    catalogue: tuple[str, ...] = ()

    @classmethod
    def from_texts(cls, **texts: Sequence[str] | None) -> "ReadOptions":
        """Create options from command-line texts, with None for absent options."""
        return cls(**{option: tuple(given or ()) for option, given in texts.items()})

    def to_arguments(self) -> list[str]:
        """Return the options as command-line arguments."""
        return [
            word
            for field in fields(self)
            for text in getattr(self, field.name)
            for word in (f"--{field.name}", text)
        ]

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) for field in fields(self))

    def for_each(self, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return the keyword arguments of `read_ratings` for each of the named sources."""
        options: dict[str, dict[str, Any]] = {name: {} for name in names}
        for field in fields(self):
            common, single = _sorted(field.name, getattr(self, field.name), names)
            for name in names:
                text = single.get(name, common)
                if text is not None:
                    options[name][field.name] = _PARSERS.get(field.name, str)(text)
        return options


DEFAULT_OPTIONS = ReadOptions()
"""No options given: every source is read with the defaults."""


def _sorted(option: str, texts: Sequence[str], names: Sequence[str]) -> tuple[str | None, dict[str, str]]:
    """Return the text for all sources, and the texts for single sources by name."""
    common: list[str] = []
    single: dict[str, str] = {}
    for text in texts:
        name, colon, value = text.partition(":")
        if colon and name in names:
            if name in single:
                raise DataError(f"--{option} is given twice for {name}; leave one out")
            single[name] = value
        elif colon and re.fullmatch(r"[\w.-]+", name):
            raise DataError(f"--{option} {name}:... names an unknown source; use one of: {', '.join(names)}")
        else:
            common.append(text)
    if len(common) > 1:
        raise DataError(
            f"--{option} is given twice; name the source of each, for example --{option} {names[0]}:..."
        )
    return (common[0] if common else None), single


def parse_columns(text: str) -> dict[str, str]:
    """Parse `user=...,item=...` to a mapping."""
    pairs = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
    if len(pairs) != len(text.split(",")):
        raise DataError(f"--columns takes user=...,item=...,rating=..., not '{text}'")
    return pairs


def parse_scale(text: str) -> tuple[float, float]:
    """Parse `1,5` to the lowest and the highest rating."""
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise DataError(
            f"--scale takes the lowest and the highest rating, for example 1,5, not '{text}'"
        ) from None
    return low, high


def parse_catalogue(text: str) -> int:
    """Parse the number of items of a catalogue."""
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
    weights = list(events.values()) if isinstance(events, Mapping) else [events]
    if (
        not weights
        or not all(math.isfinite(w) and w >= 0 for w in weights)
        or not any(weights)
        or (isinstance(events, Mapping) and "" in events)
    ):
        raise DataError(
            f"{option('events')} needs a weight above 0 for at least one kind of event (with 5, one event is a like); "
            "use 0 for kinds to leave out"
        )
    return events


_PARSERS: dict[str, Callable[[str], Any]] = {
    "columns": parse_columns,
    "events": parse_events,
    "scale": parse_scale,
    "catalogue": parse_catalogue,
}
