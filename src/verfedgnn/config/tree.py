"""The configuration: one typed tree, from presets, files and `key=value` overrides. Its branches are in `sections.py`."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import BaseModel, Field, ValidationError, model_validator

from verfedgnn import plugins
from verfedgnn.config.rules import problem
from verfedgnn.config.sections import (
    ExchangeConfig,
    Gnn,
    GradientConfig,
    ModelConfig,
    Section,
    SplitConfig,
    TrainingConfig,
)
from verfedgnn.core.errors import ConfigError


class Config(Section):
    """Everything that decides a training. All parties of a federation share it; its hash is checked."""

    seed: int = Field(0, ge=0)
    """Seed of the split, the initial values, the projection, the batches and the noise."""
    base: str = "paper"
    """The preset this configuration started from."""
    model: ModelConfig = ModelConfig()
    """The graph neural network."""
    exchange: ExchangeConfig = ExchangeConfig()
    """The exchange of neighbourhoods."""
    gradients: GradientConfig = GradientConfig()
    """The protection of gradients."""
    training: TrainingConfig = TrainingConfig()
    """Rounds and steps."""
    split: SplitConfig = SplitConfig()
    """Training, validation and test parts."""
    masking: bool = False
    """Mask gradients and neighbourhoods pairwise, so that the coordinator sees only their sums; needs ternary or Skellam ones."""
    unprotected: tuple[Literal["projection", "clip", "degrees", "noise", "sums"], ...] = ()
    """What this run may leave unprotected: projection (2q <= N + 1 broken), clip (above 0.5), degrees (estimators off), noise
    (of a federation drawn from the shared seed, to repeat a run of one machine to the bit), sums (masked ones over
    changing parties)."""

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        reason = problem(self)
        if reason:
            raise ValueError(reason)
        return self

    @staticmethod
    def preset(name: str, *, model: Gnn = "gcn", **overrides: Any) -> Config:
        """The preset `name` ("paper", "best") for one GNN, with `overrides` by field name: `preset("paper", dim=16)`."""
        return build_config(preset=name, model=model, overrides=overrides)

    def fingerprint(self) -> str:
        """Sixteen hex digits that two configurations share if and only if they are the same.

        Fields at their defaults are left out, so that a setting added later does not change what older runs recorded.
        """
        text = json.dumps(
            self.model_dump(mode="json", exclude_defaults=True), sort_keys=True, separators=(",", ":")
        )
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def with_values(self, overrides: Mapping[str, Any]) -> Config:
        """A copy with `overrides`, keyed by field name (`r`) or path (`gradients.r`); values may be text."""
        tree = self.model_dump(mode="json")
        for key, value in overrides.items():
            path = _resolve(key)
            _assign(tree, path, value)
        return _validated(tree)

    def with_code(self) -> Config:
        """A copy that says which code its plug-in is here; built-in GNNs have none, and their configurations stay as they are."""
        code = plugins.gnn_code(self.model.gnn, self.model.form)
        return self.model_copy(update={"model": self.model.model_copy(update={"code": code})})

    def to_toml(self) -> str:
        """The configuration as TOML, to be read by `load_config`."""
        return tomli_w.dumps(_spelled(self.model_dump(mode="json")))


def build_config(
    *,
    preset: str = "paper",
    model: Gnn | None = None,
    file: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Config:
    """A configuration from a preset, then a TOML file, then single values; each may leave anything out."""
    given = _read_toml(file) if file else {}
    section = given.get("model")
    gnn = model or (section.get("gnn") if isinstance(section, dict) else None) or "gcn"
    start = read_preset(preset, gnn)
    tree = _merge({"base": preset} | start, given)
    tree = _merge(tree, {"model": {"gnn": gnn}}) if model else tree
    return _validated(tree).with_values(overrides or {})


def presets() -> list[str]:
    """Names of the presets that come with the package."""
    return sorted(
        f.name.removesuffix(".toml")
        for f in resources.files("verfedgnn.config").joinpath("presets").iterdir()
    )


def read_preset(name: str, gnn: str = "gcn") -> dict[str, Any]:
    """The tree of a preset, by its name or in a file of one's own; what stands under the name of a GNN holds for that one."""
    if name.endswith(".toml"):
        tree = _read_toml(Path(name))
    elif name in presets():
        tree = tomllib.loads(
            resources.files("verfedgnn.config").joinpath(f"presets/{name}.toml").read_text("utf-8")
        )
    else:
        raise ConfigError(
            f"there is no preset '{name}'; there are: {', '.join(presets())}, or a file ending in .toml"
        )
    named = [key for key in tree if key not in Config.model_fields]
    own = {key: tree.pop(key) for key in named if key in plugins.GNNS or key in plugins.gnn_names()}
    return _merge(tree, own.get(gnn, {}))


def load_config(path: Path) -> Config:
    """The configuration a run wrote."""
    return _validated(_read_toml(path))


def parse_settings(settings: Iterable[str]) -> dict[str, str]:
    """`["r=5", "model.dim=16"]` as a mapping."""
    pairs = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set takes key=value, not '{setting}'; for example --set model.dim=16")
        pairs[key.strip()] = value.strip()
    return pairs


def fields(section: type[BaseModel] = Config, prefix: str = "") -> dict[str, Any]:
    """Every leaf of the tree by its path, as pydantic's field description."""
    found: dict[str, Any] = {}
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            found |= fields(field.annotation, f"{prefix}{name}.")
        else:
            found[prefix + name] = field
    return found


def setting_path(key: str) -> str:
    """The whole path of a setting that may be named by its last word."""
    return ".".join(_resolve(key))


def _resolve(key: str) -> list[str]:
    paths = list(fields())
    matches = [path for path in paths if path == key or path.endswith("." + key)]
    if len(matches) == 1:
        return matches[0].split(".")
    if matches:
        raise ConfigError(f"'{key}' could be {' or '.join(matches)}; write the whole path")
    leaves = {path.split(".")[-1]: path for path in paths}
    near = [leaves[name] for name in difflib.get_close_matches(key.split(".")[-1], leaves)]
    hint = f"did you mean {' or '.join(near)}?" if near else "`verfedgnn train --help` lists them all"
    raise ConfigError(f"there is no setting '{key}'; {hint}")


def _assign(tree: dict[str, Any], path: list[str], value: Any) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    if isinstance(value, str) and path == ["unprotected"] and not value.startswith("["):
        value = [word.strip() for word in value.split(",") if word.strip()]
    elif isinstance(value, str):
        with contextlib.suppress(tomllib.TOMLDecodeError):  # plain text, such as ternary
            value = tomllib.loads(f"x = {value}")["x"]
    tree[path[-1]] = value


def _validated(tree: Mapping[str, Any]) -> Config:
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        text = first["msg"].removeprefix("Value error, ")
        given = f" (it is {first['input']!r})" if where and not isinstance(first["input"], dict) else ""
        raise ConfigError(f"{where}: {text}{given}" if where else text) from None


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def _merge(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(low)
    for key, value in high.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
    return merged


def _spelled(tree: dict[str, Any]) -> dict[str, Any]:
    return {k: _spelled(v) if isinstance(v, dict) else "unset" if v is None else v for k, v in tree.items()}
