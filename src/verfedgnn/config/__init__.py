"""The configuration of a training: a typed tree, its sections, the rules between them, and presets."""

from verfedgnn.config.tree import (
    Config,
    build_config,
    fields,
    load_config,
    parse_settings,
    presets,
    read_preset,
    setting_path,
)

__all__ = [
    "Config",
    "build_config",
    "fields",
    "load_config",
    "parse_settings",
    "presets",
    "read_preset",
    "setting_path",
]
