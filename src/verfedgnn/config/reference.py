"""The reference of all settings, as `verfedgnn settings` shows it: explanation, range, default and the value in each preset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from verfedgnn.config.settings import Setting
from verfedgnn.config.tree import Config, build_config, presets, setting_path, settings


@dataclass(frozen=True)
class SettingEntry:
    """A setting and its value in each preset."""

    setting: Setting
    presets: dict[str, Any]
    """Value by preset, for GCN; a preset whose variant lacks the setting is left out."""

    def to_dict(self) -> dict[str, Any]:
        """Return the entry as plain values for JSON."""
        return {
            "name": self.setting.path,
            "explanation": self.setting.explanation,
            "range": self.setting.range,
            "choices": list(self.setting.choices),
            "default": self.setting.default,
            "required": self.setting.required,
            "belongs_to": self.setting.belongs_to or None,
            "presets": self.presets,
        }


def find_settings(name: str | None = None) -> list[SettingEntry]:
    """Return the settings with an exact name or last word, else those whose path contains it; all without a name."""
    known = settings()
    paths = list(known)
    if name:
        exact = [path for path in paths if path == name or path.endswith(f".{name}")]
        paths = exact or [path for path in paths if name.lower() in path] or [setting_path(name)]
    values = {preset: build_config(preset=preset).values() for preset in _ordered_presets()}
    return [
        SettingEntry(
            known[path],
            {preset: found[path] for preset, found in values.items() if path in found},
        )
        for path in paths
    ]


def format_value(value: Any) -> str:
    """Return a value as `--set` takes it."""
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(format_value, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _ordered_presets() -> list[str]:
    """Return the names of the presets, the default first."""
    first = Config.model_fields["base"].default
    return [first, *(preset for preset in presets() if preset != first)]
