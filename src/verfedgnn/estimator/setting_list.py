"""`settings()`: the settings of a training, explained for Python."""

from __future__ import annotations

from typing import Any

from verfedgnn.config.reference import SettingEntry, find_settings
from verfedgnn.core.installed import make_frame
from verfedgnn.reports.document import Document, Table


def settings(name: str | None = None) -> SettingList:
    """Return the settings with this name, or those whose name contains it; without a name, all of them.

    Pass a setting as a keyword argument: `VerFedRecommender(epochs=60)`, `Config.preset("best", epochs=60)`.
    """
    return SettingList(find_settings(name))


class SettingList(list[SettingEntry]):
    """Settings with their meaning, range, and value in each preset."""

    def to_dict(self) -> dict[str, Any]:
        """Return the settings by keyword argument."""
        return {_argument(entry): entry.to_dict() for entry in self}

    def to_frame(self) -> Any:
        """Return one row for each setting as a data frame of pandas."""
        return make_frame(
            [
                {"setting": _argument(entry), "values": entry.setting.range, **entry.presets}
                | {"meaning": entry.setting.explanation}
                for entry in self
            ]
        )

    def __repr__(self) -> str:
        return "\n".join(
            f"{_argument(entry)}=   {entry.setting.range}   ({_presets(entry)})\n    {entry.setting.explanation}"
            for entry in self
        )

    def _repr_html_(self) -> str:
        rows = [
            [f"`{_argument(entry)}`", entry.setting.explanation, entry.setting.range, _presets(entry)]
            for entry in self
        ]
        document = Document("Settings")
        document.add(Table(["setting", "meaning", "values", "in each preset"], rows, "Settings"))
        return document.fragment()


def _argument(entry: SettingEntry) -> str:
    return entry.setting.path.split(".")[-1]


def _presets(entry: SettingEntry) -> str:
    return ", ".join(f"{preset} {value!r}" for preset, value in entry.presets.items()) or "in no preset"
