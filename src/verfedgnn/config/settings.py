"""The list of all settings: path, explanation, range, and the variants that have it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from verfedgnn.config.sections import Section
from verfedgnn.config.variants import CHOICES, either
from verfedgnn.core.errors import ConfigError
from verfedgnn.core.option_names import worded

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

    @property
    def belongs_to(self) -> str:
        """Condition under which the configuration has this setting, such as `gradients.mechanism = laplace`."""
        if not self.variants:
            return ""
        choice = CHOICES[self.path.split(".")[0]]
        return f"{choice.path} = {either(self.variants)}"


@cache
def list_settings(root: type[Section]) -> dict[str, Setting]:
    """Return every setting below a section by its path."""
    found: dict[str, Setting] = {}
    for name, field in root.model_fields.items():
        if name in CHOICES:
            found |= _variant_settings(name)
        elif isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            section = field.annotation.model_fields.items()
            found |= {f"{name}.{key}": _setting(f"{name}.{key}", [inner], ()) for key, inner in section}
        else:
            found[name] = _setting(name, [field], ())
    return found


def resolve_setting(key: str, known: Mapping[str, Setting]) -> str:
    """Return the whole path of a setting named by its path or its last word; raise ConfigError if there is no single one."""
    matches = [path for path in known if path == key or path.endswith("." + key)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise ConfigError(f"'{key}' could be {' or '.join(matches)}; write the whole path")
    leaves = {path.split(".")[-1]: path for path in known}
    close = difflib.get_close_matches(key.split(".")[-1], leaves)
    near = [worded(leaves[name], f"`{name}=`") for name in close]
    every = worded("`verfedgnn settings`", "`vf.settings()`")
    hint = f"did you mean {' or '.join(near)}?" if near else f"{every} lists them all"
    raise ConfigError(f"there is no setting '{key}'; {hint}")


def _variant_settings(section: str) -> dict[str, Setting]:
    choice = CHOICES[section]
    names = dict.fromkeys(name for variant in choice.variants.values() for name in variant.model_fields)
    found = {}
    for name in (choice.tag, *(name for name in names if name != choice.tag)):
        having = choice.having(name)
        fields = [choice.variants[tag].model_fields[name] for tag in having]
        variants = () if len(having) == len(choice.variants) else tuple(having)
        found[f"{section}.{name}"] = _setting(f"{section}.{name}", fields, variants)
    return found


def _setting(path: str, fields: list[FieldInfo], variants: tuple[str, ...]) -> Setting:
    explanations = dict.fromkeys(" ".join((field.description or "").split()) for field in fields)
    choices = tuple(dict.fromkeys(choice for field in fields for choice in _choices(field.annotation)))
    ranges = dict.fromkeys(_describe(field) for field in fields)
    first = fields[0]
    return Setting(
        path=path,
        explanation=" ".join(explanations),
        choices=choices,
        range=either(choices) if choices and len(ranges) > 1 else " or ".join(ranges),
        default=None if first.is_required() else first.default,
        required=first.is_required(),
        variants=variants,
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
