"""Options for reading sources of ratings, given for all sources or, as `NAME:...`, for one of them.

`--columns user=uid,item=isbn` applies to every source, `--columns books:user=uid,item=isbn` to the source
called books. The same holds for `--query`, `--events`, `--encoding` and the others. An option for one source
takes precedence.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from verfedgnn.core.errors import DataError
from verfedgnn.data.event_ratings import parse_events


@dataclass(frozen=True)
class ReadOptions:
    """Options of `read_ratings` as texts. The class is hashable, so that it can be part of a cache key."""

    query: tuple[str, ...] = ()
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
        found: dict[str, dict[str, Any]] = {name: {} for name in names}
        for field in fields(self):
            common, own = _sorted(field.name, getattr(self, field.name), names)
            for name in names:
                text = own.get(name, common)
                if text is not None:
                    found[name][field.name] = _PARSERS.get(field.name, str)(text)
        return found


DEFAULT_OPTIONS = ReadOptions()
"""No options given: every source is read with the defaults."""


def _sorted(option: str, texts: Sequence[str], names: Sequence[str]) -> tuple[str | None, dict[str, str]]:
    """Return the text for all sources, and the texts for single sources by name."""
    common: list[str] = []
    own: dict[str, str] = {}
    for text in texts:
        name, colon, value = text.partition(":")
        if colon and name in names:
            if name in own:
                raise DataError(f"--{option} is given twice for {name}; leave one out")
            own[name] = value
        elif colon and re.fullmatch(r"[\w.-]+", name):
            raise DataError(f"--{option} {name}:... names an unknown source; use one of: {', '.join(names)}")
        else:
            common.append(text)
    if len(common) > 1:
        raise DataError(
            f"--{option} is given twice; name the source of each, for example --{option} {names[0]}:..."
        )
    return (common[0] if common else None), own


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


_PARSERS: dict[str, Callable[[str], Any]] = {
    "columns": parse_columns,
    "events": parse_events,
    "scale": parse_scale,
    "catalogue": parse_catalogue,
}
