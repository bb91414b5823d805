"""The configuration of a training: a typed tree, its sections, the rules between them, and presets."""

from verfedgnn.config.settings import Setting
from verfedgnn.config.tree import (
    Config,
    build_config,
    explain_invalid,
    load_config,
    parse_settings,
    presets,
    read_preset,
    setting_path,
    settings,
)

__all__ = [
    "Config",
    "Setting",
    "build_config",
    "explain_invalid",
    "load_config",
    "parse_settings",
    "presets",
    "read_preset",
    "setting_path",
    "settings",
]
