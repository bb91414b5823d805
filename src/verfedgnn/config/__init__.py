"""The configuration of a training: a typed tree, its sections, the rules between them, and presets."""

from verfedgnn.config.tree import Config, build_config, load_config, parse_settings, presets

__all__ = ["Config", "build_config", "load_config", "parse_settings", "presets"]
