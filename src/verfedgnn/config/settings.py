"""The list of all settings, and the sections whose settings depend on a variant, such as the form of the model."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from verfedgnn.config.sections import GradientConfig, ModelConfig, Section
from verfedgnn.core.option_names import setting


@dataclass(frozen=True)
class Choice:
    """A section of the configuration whose tag decides which settings it has."""

    section: str
    tag: str
    variants: Mapping[str, type[Section]]
    """Section class by value of the tag, the default first."""

    @property
    def path(self) -> str:
        """Path of the tag, such as `model.form`."""
        return f"{self.section}.{self.tag}"

    @property
    def default(self) -> str:
        """Value of the tag where none is given."""
        return next(iter(self.variants))

    def having(self, field: str) -> list[str]:
        """Return the tags of the variants that have a field."""
        return [tag for tag, variant in self.variants.items() if field in variant.model_fields]


def _choice(section: str, tag: str, union: Any) -> Choice:
    variants = get_args(get_args(union)[0])
    return Choice(section, tag, {variant.model_fields[tag].default: variant for variant in variants})


CHOICES = {
    "model": _choice("model", "form", ModelConfig),
    "gradients": _choice("gradients", "mechanism", GradientConfig),
}
"""The sections that come in variants, by name."""


def merge_trees(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree `low` with the values of `high`; a section that changes its variant keeps only the fields of the new one."""
    merged = dict(low)
    for name, new in high.items():
        old = merged.get(name)
        if not isinstance(old, Mapping) or not isinstance(new, Mapping):
            merged[name] = new
            continue
        if choice := CHOICES.get(name):
            before = old.get(choice.tag, choice.default)
            variant = choice.variants.get(new.get(choice.tag, before))
            if variant is not None and variant is not choice.variants.get(before):
                old = {key: value for key, value in old.items() if key in variant.model_fields}
        merged[name] = {**old, **new}
    return merged


def either(words: Sequence[str]) -> str:
    """Join words as "a, b or c"."""
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def check_variants(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree with the tag of every section; raise ValueError for an unknown tag or a field of another variant."""
    checked = dict(tree)
    for name, choice in CHOICES.items():
        section = tree.get(name, {})
        if not isinstance(section, Mapping):
            continue
        tag = section.get(choice.tag, choice.default)
        if tag not in choice.variants:
            known = either([f"'{known}'" for known in choice.variants])
            raise ValueError(f"{choice.path} must be {known} (it is {tag!r})")
        for key in section:
            having = choice.having(key)
            if having and tag not in having:
                raise ValueError(
                    f"{name}.{key} belongs to {choice.path} = {either(having)}, and here it is {tag}; "
                    f"leave it out or add {setting(choice.path, having[0])}"
                )
        checked[name] = {choice.tag: tag, **section}
    return checked


# -- The list of settings -----------------------------------------------------------------------------------

_BOUNDS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most"}
_WORDS = {"string": "text", "null": "unset"}
Kind = Mapping[str, Any]
"""What a value may be, as JSON Schema."""


@dataclass(frozen=True)
class Setting:
    """One setting of the configuration."""

    path: str
    explanation: str
    range: str
    """Values it can take, in words."""
    default: Any
    """Value where neither a preset nor the user gives one; None also where it must be given."""
    required: bool
    """Whether the variants that have it need a value."""
    variants: tuple[str, ...]
    """Tags of the variants that have it, such as laplace for gradients.epsilon; empty if all have it."""
    presets: dict[str, Any] = field(default_factory=dict)
    """Value by preset, for GCN, of those that have it."""

    @property
    def belongs_to(self) -> str:
        """Condition under which the configuration has this setting, such as `gradients.mechanism = laplace`."""
        return f"{CHOICES[self.path.split('.')[0]].path} = {either(self.variants)}" if self.variants else ""

    def describe(self) -> str:
        """Return the setting as lines of text."""
        default = "must be given" if self.required else f"default {format_value(self.default)}"
        lines = [f"{self.path}: {self.range}; {default}"]
        if self.belongs_to:
            lines.append(f"only with {self.belongs_to}")
        lines += textwrap.wrap(self.explanation, 94)
        values = "   ".join(f"{preset} {format_value(value)}" for preset, value in self.presets.items())
        return "\n    ".join([*lines, values or "in no preset"])

    def to_dict(self) -> dict[str, Any]:
        """Return the setting as plain values for JSON."""
        values = {"name": self.path, **vars(self), "belongs_to": self.belongs_to or None}
        return {name: value for name, value in values.items() if name not in ("path", "variants")}


def format_value(value: Any) -> str:
    """Return a value as `--set` takes it."""
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(format_value, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def list_settings(root: type[Section]) -> dict[str, Setting]:
    """Return every setting of a configuration by its path."""
    schema = root.model_json_schema()
    kinds: dict[str, dict[str, Kind]] = {}
    for name, kind in schema["properties"].items():
        if name in CHOICES:
            variants = {tag: one.model_json_schema() for tag, one in CHOICES[name].variants.items()}
        else:
            section = kind.get("$ref", "").rpartition("/")[2]
            variants = {"": schema["$defs"].get(section, {"properties": {"": kind}})}
        for tag, variant in variants.items():
            for key, one in variant["properties"].items():
                kinds.setdefault(f"{name}.{key}".removesuffix("."), {})[tag] = one
    return {path: _setting(path, by_tag) for path, by_tag in kinds.items()}


def _setting(path: str, kinds: Mapping[str, Kind]) -> Setting:
    """Return a setting, given its kind in each variant that has it."""
    first, *_ = kinds.values()
    choice = CHOICES.get(path.partition(".")[0])
    return Setting(
        path=path,
        explanation=" ".join(dict.fromkeys(" ".join(kind["description"].split()) for kind in kinds.values())),
        range=either([*dict.fromkeys(word for kind in kinds.values() for word in _words(kind))]),
        default=first.get("default"),
        required="default" not in first,
        variants=tuple(kinds) if choice and len(kinds) < len(choice.variants) else (),
    )


def _words(kind: Kind) -> list[str]:
    """Return the values of a kind in words, one text for each choice or type: "integer, at least 1", "unset"."""
    if "anyOf" in kind:
        return [word for one in kind["anyOf"] for word in _words(one)]
    if values := kind.get("enum", [kind["const"]] if "const" in kind else []):
        return [*map(str, values)]
    if kind["type"] == "boolean":
        return ["true", "false"]
    if kind["type"] == "array":
        parts = kind.get("prefixItems", [])
        one = either(_words(parts[0] if parts else kind["items"]))
        return [f"{len(parts)} x {one}" if parts else f"list of {one}"]
    name: str = kind.get("format", kind["type"])
    limits = [f"{word} {kind[key]:g}" for key, word in _BOUNDS.items() if key in kind]
    return [", ".join([_WORDS.get(name, name), *limits])]
