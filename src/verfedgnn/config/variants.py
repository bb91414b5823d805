"""The sections of the configuration that come in variants, and switching from one variant to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from verfedgnn.config.model_forms import ModelConfig
from verfedgnn.config.sections import GradientConfig, Section
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
    choice.section: choice
    for choice in (
        _choice("model", "form", ModelConfig),
        _choice("gradients", "mechanism", GradientConfig),
    )
}
"""The sections that come in variants, by name."""


def merge_trees(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree `low` with the values of `high`; a section that changes its variant keeps only the fields of the new one."""
    kept = dict(low)
    for name, choice in CHOICES.items():
        old = kept.get(name)
        new = high.get(name)
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
