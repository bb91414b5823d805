"""The list of all settings, and the sections whose settings depend on a variant, such as the form of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

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
    kept = dict(low)
    for name, choice in CHOICES.items():
        old, new = kept.get(name), high.get(name)
        if not isinstance(old, Mapping) or not isinstance(new, Mapping):
            continue
        before = old.get(choice.tag, choice.default)
        variant = choice.variants.get(new.get(choice.tag, before))
        if variant is not None and variant is not choice.variants.get(before):
            kept[name] = {field: value for field, value in old.items() if field in variant.model_fields}
    return _merge(kept, high)


def _merge(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(low)
    for key, value in high.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
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
        for field in section:
            having = choice.having(field)
            if having and tag not in having:
                raise ValueError(
                    f"{name}.{field} belongs to {choice.path} = {either(having)}, and here it is {tag}; "
                    f"leave it out or add {setting(choice.path, having[0])}"
                )
        checked[name] = {choice.tag: tag, **section}
    return checked


# -- The list of settings -----------------------------------------------------------------------------------

_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


@dataclass(frozen=True)
class Setting:
    """One setting of the configuration."""

    path: str
    explanation: str
    choices: tuple[str, ...]
    """Values it can take, as text; empty for numbers and free text."""
    range: str
    """Values it can take, in words."""
    default: Any
    """Value where neither a preset nor the user gives one; None also where it must be given."""
    required: bool
    """Whether the variants that have it need a value."""
    variants: tuple[str, ...]
    """Tags of the variants that have it, such as laplace for gradients.epsilon; empty if all have it."""
    presets: dict[str, Any]
    """Value by preset, for GCN, of those that have it."""

    @property
    def belongs_to(self) -> str:
        """Condition under which the configuration has this setting, such as `gradients.mechanism = laplace`."""
        return f"{CHOICES[self.path.split('.')[0]].path} = {either(self.variants)}" if self.variants else ""

    def to_dict(self) -> dict[str, Any]:
        """Return the setting as plain values for JSON."""
        return {
            "name": self.path,
            "explanation": self.explanation,
            "range": self.range,
            "choices": list(self.choices),
            "default": self.default,
            "required": self.required,
            "belongs_to": self.belongs_to or None,
            "presets": self.presets,
        }


def list_settings(root: type[Section]) -> dict[str, Setting]:
    """Return every setting below a section by its path."""
    found: dict[str, Setting] = {}
    for name, field in root.model_fields.items():
        if name in CHOICES:
            found |= _variant_settings(name)
        elif isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            found |= {f"{name}.{key}": setting for key, setting in list_settings(field.annotation).items()}
        else:
            found[name] = _setting([field])
    return {path: replace(setting, path=path) for path, setting in found.items()}


def _variant_settings(section: str) -> dict[str, Setting]:
    choice = CHOICES[section]
    names = [name for variant in choice.variants.values() for name in variant.model_fields]
    found = {}
    for name in dict.fromkeys([choice.tag, *names]):
        having = choice.having(name)
        fields = [choice.variants[tag].model_fields[name] for tag in having]
        found[f"{section}.{name}"] = _setting(fields, having if len(having) < len(choice.variants) else [])
    return found


def _setting(fields: Sequence[FieldInfo], variants: Sequence[str] = ()) -> Setting:
    explanations = dict.fromkeys(" ".join((field.description or "").split()) for field in fields)
    choices = tuple(dict.fromkeys(choice for field in fields for choice in _choices(field.annotation)))
    ranges = dict.fromkeys(_describe(field) for field in fields)
    required = fields[0].is_required()
    return Setting(
        path="",
        explanation=" ".join(explanations),
        choices=choices,
        range=either(choices) if choices and len(ranges) > 1 else " or ".join(ranges),
        default=None if required else fields[0].default,
        required=required,
        variants=tuple(variants),
        presets={},
    )


def _choices(annotation: Any) -> list[str]:
    """Return the values of a type that has few, or an empty list."""
    if annotation is bool:
        return ["true", "false"]
    if get_origin(annotation) is Literal:
        return [str(value) for value in get_args(annotation)]
    return []


def _describe(field: FieldInfo) -> str:
    """Return the values of a field in words: "integer, at least 1, at most 16"."""
    limits = [
        f"{word} {getattr(bound, name):g}"
        for bound in field.metadata
        for name, word in _BOUNDS.items()
        if getattr(bound, name, None) is not None
    ]
    return ", ".join([_name(field.annotation), *limits])


def _name(annotation: Any) -> str:
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if _choices(annotation):
        return either(_choices(annotation))
    if origin is Annotated:
        return _describe(FieldInfo.from_annotation(annotation))
    if origin in (Union, UnionType):
        return either([word for kind in arguments for word in _choices(kind) or [_name(kind)]])
    if origin is tuple:
        one = _name(arguments[0])
        return f"list of {one}" if arguments[-1] is Ellipsis else f"{len(arguments)} x {one}"
    return {int: "integer", float: "number", str: "text", date: "date", NoneType: "unset"}[annotation]
