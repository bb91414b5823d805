"""The configuration: one typed tree, read from presets, files and `key=value` overrides."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import Field, ValidationError, model_validator

from verfedgnn import plugins
from verfedgnn.config.rules import find_conflicts
from verfedgnn.config.sections import (
    SIZES,
    GradientConfig,
    ModelConfig,
    PropagationModel,
    Section,
    SplitConfig,
    TernaryGradients,
    TrainingConfig,
    choose_sizes,
)
from verfedgnn.config.settings import CHOICES, Setting, check_variants, list_settings, merge_trees
from verfedgnn.core.errors import ConfigError
from verfedgnn.core.option_names import worded

PRESETS = Path(__file__).with_name("presets")
TWO_PARTIES_NOISE, RATERS_MODEL_NOISE = 0.25, 0.1
"""Noise on the gradients of two parties, and of more parties with a second model (`gradients.noise`)."""
TWO_PARTIES_RATERS = 16
"""Largest H of two parties: longer rows tell each of them more about the other's ratings, and predict no better."""

FINAL_ROUNDS = {"ratings": 6, "raters": 15, "lists": 6}
"""Rounds of the trainings on all ratings, which start from the judged ones: of ratings, of ratings with a second model, and of lists."""


class Config(Section):
    """All settings of a training. The parties of a federation share them and compare their fingerprint."""

    seed: int = Field(0, ge=0)
    """Seed of the split, the initial values, the projection, the batches and the noise."""
    users: Literal["any", "all"] | Annotated[int, Field(ge=2)] = "any"
    """Users who take part: any (those of any party), all (those at every party), or a number N (those at N or more parties)."""
    base: str = Field("paper", max_length=1000, pattern=r"^[^\p{C}\p{Zl}\p{Zp}<>|`]+$")
    """Preset from which this configuration started."""
    model: ModelConfig = PropagationModel()
    """The graph neural network."""
    exchange: Annotated[float, Field(ge=0)] | Literal["off"] = 5.0
    """Users per row of the random projection Phi in which neighbourhoods X are sent, N/q (Sec. 4.4; paper: 5). 0: parties send X itself,
    unprotected; off: no neighbourhood leaves a party."""
    gradients: GradientConfig = TernaryGradients()
    """The protection of gradients."""
    training: TrainingConfig = TrainingConfig()
    """Rounds and steps."""
    split: SplitConfig = SplitConfig()
    """Training, validation and test parts."""
    masking: bool = False
    """Mask gradients and neighbourhoods pairwise, so that the coordinator sees only their sums. Needs ternary, skellam or rounded
    gradients."""
    lists: bool = False
    """Also train a second model that orders lists. It needs model.form = solved and training.gate."""
    final: bool = True
    """After the training that is judged, train the model that is served on all ratings. It needs training.gate."""
    unprotected: tuple[Literal["projection", "clip", "degrees", "noise"], ...] = ()
    """Protections that this run may do without. projection: 2q <= N + 1 does not hold; clip: gradients.clip exceeds 0.5;
    degrees: model.estimators is false; noise: parties of a federation draw noise from the shared seed, to repeat a run of one
    machine bit for bit."""

    @model_validator(mode="before")
    @classmethod
    def _check_variants(cls, values: Any) -> Any:
        return check_variants(values) if isinstance(values, Mapping) else values

    @model_validator(mode="after")
    def _check_rules(self) -> Config:
        if conflict := next(find_conflicts(self), None):
            raise ValueError(conflict)
        return self

    @staticmethod
    def preset(name: str, *, model: str = "gcn", **overrides: Any) -> Config:
        """Return a preset for one GNN, with `overrides` by setting name: `Config.preset("paper", dim=16)`."""
        return build_config(preset=name, model=model, overrides=overrides)

    def digest(self) -> str:
        """Return the SHA-256 of the configuration, for members to compare.

        Fields at their defaults are left out, so that adding a setting does not change the fingerprints of older runs.
        """
        tree = self.model_dump(mode="json", exclude_defaults=True)
        for name, choice in CHOICES.items():
            tag = getattr(getattr(self, name), choice.tag)
            if tag != choice.default:
                tree[name][choice.tag] = tag
        text = json.dumps(tree, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def fingerprint(self) -> str:
        """Return the first 16 digits of `digest`, to name a configuration in tables and records."""
        return self.digest()[:16]

    def with_values(self, overrides: Mapping[str, Any]) -> Config:
        """Return a copy with `overrides`, keyed by setting name (`r`) or path (`gradients.r`); values may be text.

        A section that changes its variant, such as `model.form`, keeps the settings that the new variant has.
        """
        changes: dict[str, Any] = {}
        for key, value in overrides.items():
            path = setting_path(key)
            section, _, name = path.rpartition(".")
            (changes.setdefault(section, {}) if section else changes)[name] = _parse(path, value)
        return _validate(merge_trees(self.model_dump(mode="json"), changes))

    def with_code(self) -> Config:
        """Return a copy that records the installed code of its plug-in; without a plug-in the copy is equal."""
        code = plugins.identify_gnn(self.model.gnn)
        return self.model_copy(update={"model": self.model.model_copy(update={"code": code})})

    @property
    def ranks(self) -> bool:
        """Return whether the model orders lists instead of predicting ratings."""
        return self.model.solved and not self.model.biases

    @property
    def trains_lists(self) -> bool:
        """Return whether a second model is trained that orders lists."""
        return self.lists and self.training.gate and not self.ranks

    @property
    def means_only(self) -> bool:
        """Return whether the parties share means of users and no vectors."""
        return self.model.form == "means"

    @property
    def federates_lists(self) -> bool:
        """Return whether the second model is trained by the federation; where only means are shared, a party has its own."""
        return self.trains_lists and not self.means_only

    def for_lists(self) -> Config:
        """Return the configuration of the model that orders lists. It needs three quarters of the rounds."""
        sizes = next((sizes for _, sizes in SIZES if self.model.dim <= sizes.dim), SIZES[-1][1])
        lists: dict[str, Any] = {
            "model.form": "solved",
            "model.biases": False,
            "model.raters": 0,
            "model.dim": sizes.lists if self.model.dim else 0,
        }
        final = self.split.kind == "all"
        rounds = FINAL_ROUNDS["lists"] if final else max(1, 3 * self.training.epochs // 4)
        lists |= {"training.evaluate_every": rounds} if final else {}
        return self.with_values(lists | {"lists": False, "training.epochs": rounds})

    @property
    def trains_final(self) -> bool:
        """Return whether what is served is trained on all ratings, after the judged training."""
        return self.final and self.training.gate and self.split.kind != "all"

    def for_final(self) -> Config:
        """Return the configuration of the training on all ratings, which starts from the judged one and needs few rounds."""
        rounds = self.training.epochs
        if self.model.solved:
            name = "lists" if self.ranks else "raters" if self.model.raters else "ratings"
            rounds = 1 if self.means_only else FINAL_ROUNDS[name]
        every = {"training.epochs": rounds, "training.evaluate_every": rounds, "training.patience": 0}
        return self.with_values({"split.kind": "all"} | every)

    def noise_of(self, parties: int) -> float:
        """Return the noise that each of so many parties adds to its rounded gradients, in multiples of a column's size.

        Where none is set, two parties add it because they see each other's gradients, and more of them if there is a second model,
        whose gradients tell most about single items.
        """
        if self.gradients.mechanism != "rounded":
            return 0.0
        if self.gradients.noise is not None:
            return self.gradients.noise
        return TWO_PARTIES_NOISE if parties == 2 else RATERS_MODEL_NOISE if self.model.raters > 0 else 0.0

    def for_data(self, users: int, ratings: int, parties: int) -> Config:
        """Return the configuration of so many parties, with the sizes that their users and ratings need, where none are set."""
        if self.model.form != "solved":
            return self
        sizes = choose_sizes(users, ratings)
        found = {}
        if not self.model.dim:
            found["model.dim"] = sizes.lists if self.ranks else sizes.dim
        if self.model.raters < 0:
            raters = min(sizes.raters, TWO_PARTIES_RATERS) if parties == 2 else sizes.raters
            found["model.raters"] = 0 if self.ranks else raters
        return self.with_values(found)

    def judged(self, error: float) -> dict[str, float]:
        """Return a validation error under its metric's name: RMSE, or NDCG@20 = 1 - error for lists."""
        return {"ndcg@20": 1 - error} if self.ranks else {"rmse": error}

    def error_of(self, judged: Mapping[str, float]) -> float:
        """Return the validation error from what `judged` returned, or from a line of history.jsonl."""
        name = "ndcg@20" if self.ranks else "rmse"
        value = judged[name] if name in judged else judged[f"valid_{name}"]
        return 1 - value if self.ranks else value

    def values(self) -> dict[str, Any]:
        """Return the value of every setting that this configuration has, by path."""
        found: dict[str, Any] = {}
        for name, value in self.model_dump(mode="json").items():
            section = isinstance(value, dict)
            found |= {f"{name}.{key}": v for key, v in value.items()} if section else {name: value}
        return found

    def to_toml(self) -> str:
        """Return the configuration as TOML that `load_config` reads."""
        return tomli_w.dumps(_without_null(self.model_dump(mode="json")))


def build_config(
    *,
    preset: str = "paper",
    model: str | None = None,
    file: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Config:
    """Build a configuration from a preset, then a TOML file, then single values; later ones win."""
    tree = merge_trees({"base": preset} | read_preset(preset), _read_toml(file) if file else {})
    if model:
        tree = merge_trees(tree, {"model": {"gnn": model}})
    return _validate(tree).with_values(overrides or {})


def presets() -> list[str]:
    """Return the names of the presets that come with the package."""
    return sorted(file.stem for file in PRESETS.iterdir())


def read_preset(name: str) -> dict[str, Any]:
    """Return the tree of a built-in preset or of a TOML file."""
    if name not in presets() and not name.endswith(".toml"):
        known = ", ".join(presets())
        raise ConfigError(f"there is no preset '{name}'; choose {known} or a file that ends in .toml")
    return _read_toml(PRESETS / f"{name}.toml" if name in presets() else Path(name))


def load_config(path: Path) -> Config:
    """Read the configuration that a run wrote."""
    return _validate(_read_toml(path))


def parse_settings(settings: Iterable[str]) -> dict[str, str]:
    """Parse texts such as `["r=5", "model.dim=16"]` into a mapping."""
    pairs = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set takes key=value, not '{setting}'; for example --set model.dim=16")
        pairs[key.strip()] = value.strip()
    return pairs


@cache
def settings() -> dict[str, Setting]:
    """Return every setting by its path."""
    return list_settings(Config)


def setting_path(key: str) -> str:
    """Return the whole path of a setting named by its path or its last word; raise ConfigError if there is no single one."""
    matches = [path for path in settings() if path == key or path.endswith("." + key)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise ConfigError(f"'{key}' could be {' or '.join(matches)}; write the whole path")
    leaves = {path.split(".")[-1]: path for path in settings()}
    close = difflib.get_close_matches(key.split(".")[-1], leaves)
    near = [worded(leaves[name], f"`{name}=`") for name in close]
    every = worded("`verfedgnn settings`", "`vf.settings()`")
    hint = f"did you mean {' or '.join(near)}?" if near else f"{every} lists them all"
    raise ConfigError(f"there is no setting '{key}'; {hint}")


def find_settings(name: str | None = None) -> list[Setting]:
    """Return the settings with an exact name or last word, else those whose path contains it; all without a name."""
    known = settings()
    paths = list(known)
    if name:
        exact = [path for path in paths if path == name or path.endswith(f".{name}")]
        paths = exact or [path for path in paths if name.lower() in path] or [setting_path(name)]
    first = Config.model_fields["base"].default
    names = sorted(presets(), key=lambda preset: (preset != first, preset))
    values = {preset: build_config(preset=preset).values() for preset in names}
    having = {path: {p: found[path] for p, found in values.items() if path in found} for path in paths}
    return [replace(known[path], presets=having[path]) for path in paths]


def explain_invalid(error: ValidationError) -> str:
    """Return the first problem of a validation as one line that names the setting."""
    first, *others = error.errors()
    value, problem = first["input"], first.get("ctx", {}).get("error")
    if isinstance(problem, ConfigError) or (problem and isinstance(value, Mapping)):
        return str(problem)  # names the settings itself
    where, variant = _place(first["loc"])
    if first["type"] == "missing" or (value is None and where):
        beside = [one for one in others if one["loc"][:-1] == first["loc"][:-1]]
        unset = [one for one in beside if one["type"] == "missing" or one["input"] is None]
        return f"{' and '.join([where, *(_place(one['loc'])[0] for one in unset)])} must be set{variant}"
    text = first["msg"].removeprefix("Value error, ").replace("Input should", "must").partition(", unable")[0]
    known = settings().get(where.rpartition(".")[0])
    if first["type"] == "extra_forbidden":
        text = "is not known"
    elif known and isinstance(first["loc"][-1], str):  # one of several types
        where, text = known.path, f"must be {known.range}"
    elif first["type"] == "literal_error":
        text += variant
    given = f" (it is {value!r})" if where and not isinstance(value, dict) else ""
    colon = "" if text.startswith(("must ", "is ")) else ":"
    return f"{where}{colon} {text}{given}" if where else text


def _place(location: tuple[int | str, ...]) -> tuple[str, str]:
    """Return a path without the tags that pydantic inserts for variants, and " for model.form = solved" if there is one."""
    parts, variant = [], ""
    for before, part in pairwise((None, *location)):
        choice = CHOICES.get(str(before))
        if choice and part in choice.variants:
            variant = f" for {choice.path} = {part}"
        else:
            parts.append(str(part))
    return ".".join(parts), variant


def _parse(path: str, value: Any) -> Any:
    """Return the value of a setting that may be given as text."""
    if not isinstance(value, str):
        return value
    if path == "unprotected" and not value.startswith("["):
        return [word.strip() for word in value.split(",") if word.strip()]
    with contextlib.suppress(tomllib.TOMLDecodeError):  # plain text, such as ternary
        return tomllib.loads(f"x = {value}")["x"]
    return value


def _validate(tree: Mapping[str, Any]) -> Config:
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(explain_invalid(error)) from None


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def _without_null(tree: dict[str, Any]) -> dict[str, Any]:
    """Write None as "unset", because TOML has no null."""
    return {
        name: _without_null(value) if isinstance(value, dict) else "unset" if value is None else value
        for name, value in tree.items()
    }
