"""`settings()`: the settings of a training, explained for Python."""

from __future__ import annotations

from typing import Any

from verfedgnn.config.settings import Setting
from verfedgnn.config.tree import find_settings
from verfedgnn.core.installed import make_frame


def settings(name: str | None = None) -> SettingList:
    """Return the settings with this name, or those whose name contains it; without a name, all of them.

    Pass a setting as a keyword argument: `VerFedRecommender(epochs=60)`, `Config.preset("best", epochs=60)`.
    """
    return SettingList(find_settings(name))


class SettingList(list[Setting]):
    """Settings with their meaning, range, and value in each preset."""

    def to_dict(self) -> dict[str, Any]:
        """Return the settings by keyword argument."""
        return {_argument(entry): entry.to_dict() for entry in self}

    def to_frame(self) -> Any:
        """Return one row for each setting as a data frame of pandas."""
        return make_frame(
            [
                {"setting": _argument(entry), "values": entry.range, **entry.presets}
                | {"meaning": entry.explanation}
                for entry in self
            ]
        )

    def __repr__(self) -> str:
        return "\n".join(map(_describe, self))


def _argument(entry: Setting) -> str:
    return entry.path.split(".")[-1]


def _describe(entry: Setting) -> str:
    presets = ", ".join(f"{preset} {value!r}" for preset, value in entry.presets.items()) or "in no preset"
    return f"{_argument(entry)}=   {entry.range}   ({presets})\n    {entry.explanation}"
