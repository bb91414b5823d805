"""The configuration: one typed tree, a sentence under each field; presets and `key=value` overrides."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from verfedgnn import origin, plugins
from verfedgnn.errors import ConfigError

Gnn = Annotated[str, AfterValidator(plugins.check_gnn)]
"""The name of a GNN that is installed here."""

FRACTION_BITS = {12: 8, 16: 10, 32: 20, 64: 32}
"""Neighbourhoods travel as multiples of 2^-20 (32 bits, sums may reach +-2048), of 2^-10 (16 bits, +-32), of 2^-8 (12 bits, +-8)
or, exact ones, of 2^-32 (64 bits, +-2 billion)."""


class Section(BaseModel):
    """A branch of the tree: immutable, and nothing in it that is not declared here."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _unset(cls, values: Any) -> Any:
        """TOML has no null: the text "unset" stands for it."""
        return {k: None if v == "unset" else v for k, v in values.items()} if isinstance(values, dict) else values


class ModelConfig(Section):
    """The graph neural network (Sec. 3.2)."""

    gnn: Gnn = "gcn"
    """Aggregation and update: gcn, gat, ggnn, or a plug-in's (docs/python.md)."""
    code: str | None = Field(None, pattern=origin.PATTERN)
    """Which code a plug-in's GNN is: file or package and SHA-256. Training and `federation init` write it down by themselves."""
    dim: int = Field(6, ge=1, le=4096)
    """D, the size of an embedding (paper: 6)."""
    layers: int = Field(2, ge=1, le=16)
    """K, the number of propagation layers (paper: 2)."""
    activation: Literal["sigmoid", "tanh", "relu", "identity"] = "sigmoid"
    """The non-linearity of GCN's and GAT's update (paper: sigmoid)."""
    form: Literal["propagation", "messages", "factors"] = "propagation"
    """propagation: K layers over the embeddings (eq. 1-3); messages: one layer of private message embeddings (docs/model.md);
    factors: no graph, the embeddings themselves."""
    own_messages: bool = True
    """Whether a party's own items speak to its users, too; off, h_u takes in the others' messages only."""
    biases: bool = False
    """A private bias per item and a public one per user beside the product of embeddings (docs/model.md)."""
    residual: bool = False
    """A user bias and a user embedding that are private to each party, added to the public ones."""
    threshold: float | Literal["all"] | None = None
    """An item is a neighbour of a user from this rating on; unset: three quarters up the rating scale (4 of 5, 8 of 10); all:
    every rated item."""
    init_std: float = Field(0.1, ge=0)
    """Standard deviation of the initial embeddings; their mean is 0."""
    init_mix: float = Field(1.0, gt=0)
    """Initial a_k (eq. 3), as a multiple of the value at which layers of 1/2 predict the middle of the rating scale."""
    bound: float | None = Field(None, gt=0)
    """Bound on the l2 norm of every user's and item's embedding; after each step longer ones are shortened to it."""
    estimators: bool = True
    """Estimate a user's degree from the party's own share (Sec. 4.3); off, exact degrees are exchanged (unprotected)."""
    generator: bool = False
    """Take in neighbourhoods that are generated (FedSage+) instead of the others', which only train the generator."""

    @model_validator(mode="before")
    @classmethod
    def _there(cls, values: Any) -> Any:
        """A plug-in that is not installed is told with what is known of its code."""
        if isinstance(values, dict) and isinstance(values.get("gnn"), str):
            code = values.get("code")
            plugins.check_gnn(values["gnn"], code if isinstance(code, str) and re.match(origin.PATTERN, code) else None)
        return values


class ExchangeConfig(Section):
    """What parties tell each other about neighbourhoods (Sec. 4.4)."""

    mode: Literal["projected", "masked", "noised", "exact", "none"] = "projected"
    """projected: Phi X is sent; masked: X under masks, so that only sums are seen; noised: masked, with noise on the sums;
    exact: X itself (unprotected); none: no neighbourhood leaves a party."""
    ratio: float = Field(5.0, gt=0)
    """N/q, how many users one row of the projection stands for (paper: 5)."""
    block: int = Field(0, ge=0)
    """Block size B of a block-diagonal projection; 0, or at least N: one block, the paper's Phi."""
    reconstruction: Literal["adjoint", "scaled"] = "adjoint"
    """adjoint: Phi^T Y (eq. 14); scaled: Phi^T Y / (1 + (m+1)/q), the multiple with the least expected error."""
    refresh: int = Field(0, ge=0, le=16)
    """Exchange-only round trips before each training round; K of them make the exchange synchronous (exact)."""
    every: int = Field(1, ge=1, le=65535)
    """Rounds between two exchanges; in between the last sums are used again."""
    bits: Literal[12, 16, 32, 64] = 32
    """Bits of a number on the wire: 32 with 20 of them behind the point, 16 with 10, 12 with 8, or 64 with 32 (mode exact only,
    where degrees and attention may be large)."""
    backward: bool = False
    """Train messages on the others' losses, too: the summed protected user gradients stand for the gradient with respect to
    neighbourhoods, so nothing more is sent."""
    noise: float = Field(0.0, ge=0)
    """noised: standard deviation of the noise on the sum of the others."""
    row_clip: float | None = Field(None, gt=0)
    """noised: bound on the l2 norm of a user's row before it is noised."""


class GradientConfig(Section):
    """How the gradients of public parameters are protected (Sec. 4.5)."""

    mechanism: Literal["ternary", "laplace", "skellam", "none"] = "ternary"
    """ternary quantization (Def. 4.2), Laplace noise (Table 6), Skellam noise under masked sums (differential privacy of single
    ratings over the whole training, docs/privacy.md), or none (unprotected)."""
    r: float = Field(3.0, gt=0)
    """The ternary scheme's r: one release moves by at most 1/r in total variation for gradients 1 apart in l1."""
    epsilon: float = Field(1.0, gt=0)
    """The Laplace mechanism's epsilon per release."""
    noise_multiplier: float = Field(0.0, ge=0)
    """skellam: standard deviation of the noise on a sum, as a multiple of how far one rating can move it."""
    delta: float = Field(1e-6, gt=0, lt=1)
    """The delta at which a composed epsilon is reported."""
    clip: float | None = Field(0.5, gt=0)
    """Bound on each coordinate before ternary or Laplace (paper: 0.5)."""
    rescale_users: float = Field(1.0, gt=0)
    """Public factor s on the user embeddings' gradient before the clip, divided out after it; it costs no privacy."""
    rescale_weights: float = Field(1.0, gt=0)
    """The same for the shared weights (W, a_k, attention, GRU)."""
    rescale_by_ratings: bool = False
    """Divide these factors by the root of the number of ratings a coordinate sums over: an average user's, or all, at a party."""


class TrainingConfig(Section):
    """Rounds, steps and when to stop."""

    user_blocks: int = Field(1, ge=1, le=100_000)
    """Parts into which users are cut; a round works on one of them, by turns, and sends nothing about the others."""
    optimizer: Literal["adagrad", "sgd"] = "adagrad"
    """The rule for public and private steps (paper: Adagrad)."""
    lr: float = Field(0.05, gt=0)
    """Learning rate (paper: 0.05)."""
    lr_weights: float = Field(1.0, gt=0)
    """Factor on the learning rate of the shared weights."""
    lr_private: float = Field(1.0, gt=0)
    """Factor on the learning rate of private parameters."""
    lr_messages: float = Field(1.0, gt=0)
    """The same for message embeddings."""
    average: float = Field(0.0, ge=0, lt=1)
    """Decay of the running average of all parameters that is validated and kept in their place; 0: no average."""
    error_clip: float | None = Field(None, gt=0)
    """Errors count linearly beyond this (Huber), so that no rating pulls harder than that."""
    objective: Literal["rating", "ranking"] = "rating"
    """rating: squared error (eq. 5); ranking: softmax over the party's catalogue, for every liked item."""
    negatives: int = Field(0, ge=0)
    """ranking: items of the catalogue drawn for the softmax in a round; 0: all."""
    l2: float = Field(1.0, ge=0)
    """Weight of the regulariser of eq. 5, (1/N) sum |e_u|^2 + (1/M) sum |e_v|^2."""
    l2_row: float = Field(0.0, ge=0)
    """Weight of |e_u|^2 (also of a party's own), |e_v|^2 and |y_v|^2, once each."""
    l2_rating: float = Field(0.0, ge=0)
    """Weight of |e_u|^2 + |e_v|^2 for every rating of u for v."""
    l2_messages: float = Field(0.0, ge=0)
    """Weight of |y_v|^2 for every rating of v."""
    l2_user_bias: float = Field(0.0, ge=0)
    """Weight of b_u^2 (also of a party's own), once each."""
    l2_item_bias: float = Field(0.0, ge=0)
    """Weight of b_v^2, once each."""
    l2_residual: float = Field(0.0, ge=0)
    """Weight of a party's own user bias and embedding, squared, for every rating of u there."""
    batch: int = Field(5000, ge=0)
    """Training ratings per round over all parties; 0: all of them."""
    epochs: int = Field(50, ge=1)
    """Passes over the training ratings; rounds = epochs x ratings / batch."""
    participation: float = Field(1.0, gt=0, le=1)
    """Share of the parties that take part in a round (Sec. 4.6)."""
    gate: bool = False
    """After training, every party also trains the model alone and mixes both as its own validation part says."""
    evaluate_every: int = Field(0, ge=0)
    """Rounds between two validations; 0: once an epoch."""
    patience: int = Field(0, ge=0)
    """Stop after so many validations without a better one; 0: train to the end. The best one is kept either way."""
    checkpoint_every: int = Field(500, ge=1)
    """Rounds between two checkpoints."""

    @property
    def ranks(self) -> bool:
        """Whether items are ranked, and no ratings predicted."""
        return self.objective == "ranking"

    def judged(self, error: float) -> dict[str, float]:
        """A validation's error under its name: RMSE, or for a ranking NDCG@20, which is 1 - error."""
        return {"ndcg@20": 1 - error} if self.ranks else {"rmse": error}

    def error_of(self, judged: Mapping[str, float]) -> float:
        """The way back from `judged`, also among other values and under the names of history.jsonl."""
        name = "ndcg@20" if self.ranks else "rmse"
        value = judged[name] if name in judged else judged[f"valid_{name}"]
        return 1 - value if self.ranks else value


class SplitConfig(Section):
    """Which ratings train, select and judge."""

    kind: Literal["rating", "time"] = "rating"
    """rating: at random by `fractions`; time: each user's last rating at a party tests, the one before validates."""
    fractions: tuple[float, float, float] = (0.6, 0.2, 0.2)
    """Shares of training, validation and test (paper: 60/20/20)."""


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
        problem = _problem(self)
        if problem:
            raise ValueError(problem)
        return self

    @staticmethod
    def preset(name: str, *, model: Gnn = "gcn", **overrides: Any) -> Config:
        """The preset `name` ("paper", "best") for one GNN, with `overrides` by field name: `preset("paper", dim=16)`."""
        return build_config(preset=name, model=model, overrides=overrides)

    def fingerprint(self) -> str:
        """Sixteen hex digits that two configurations share if and only if they are the same.

        Fields at their defaults are left out, so that a setting added later does not change what older runs recorded.
        """
        text = json.dumps(self.model_dump(mode="json", exclude_defaults=True), sort_keys=True, separators=(",", ":"))
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


def _problem(config: Config) -> str | None:
    gradients, exchange = config.gradients, config.exchange
    if config.model.gnn not in plugins.GNNS:
        plugins.gnn(config.model.gnn, config.model.form)  # which says what is wrong by itself
    if gradients.mechanism == "skellam":
        problem = _skellam_problem(config)
        if problem:
            return problem
    elif gradients.noise_multiplier:
        return f"gradients.noise_multiplier belongs to gradients.mechanism = skellam, not {gradients.mechanism}"
    if gradients.mechanism in ("ternary", "laplace"):
        if gradients.clip is None:
            return f"gradients.clip must be set for {gradients.mechanism}: without it no bound holds"
        if gradients.mechanism == "ternary" and gradients.clip > gradients.r:
            return f"gradients.clip = {gradients.clip} exceeds r = {gradients.r}: |x|/r would not be a probability; raise r"
        if gradients.clip > 0.5 and "clip" not in config.unprotected:
            return (
                f"gradients.clip = {gradients.clip} lets two gradients differ by more than 1 per coordinate, which the "
                "guarantee does not cover; use 0.5 or ask for it with --set unprotected=clip"
            )
    if exchange.mode == "projected" and exchange.block == 1 and "projection" not in config.unprotected:
        return (
            "exchange.block = 1 sends every user's value times a known number; "
            "use 2 or more, or ask for it with --set unprotected=projection"
        )
    if not config.model.estimators and exchange.mode != "none" and "degrees" not in config.unprotected:
        return (
            "model.estimators = false exchanges how many items each user has at each party; "
            "leave it on, or ask for it with --set unprotected=degrees"
        )
    if exchange.mode == "projected" and exchange.ratio < 2 and "projection" not in config.unprotected:
        return (
            f"exchange.ratio = {exchange.ratio} means 2q > N + 1, so Theorem 1 does not hide single values; "
            "use 2 or more, or ask for it with --set unprotected=projection"
        )
    if exchange.mode in ("masked", "noised") and not config.masking:
        return f"exchange.mode = {exchange.mode} is protected by masks; add --set masking=true"
    if exchange.mode == "noised" and (not exchange.noise or exchange.row_clip is None):
        return "exchange.mode = noised needs exchange.noise and exchange.row_clip: the guarantee is their ratio"
    if exchange.noise * 6 * (1 << FRACTION_BITS[exchange.bits]) > 2 ** (exchange.bits - 1):
        return f"exchange.noise = {exchange.noise:g} does not fit into {exchange.bits} bits; use less, or exchange.bits = 32"
    if exchange.mode != "noised" and (exchange.noise or exchange.row_clip is not None):
        return f"exchange.noise and exchange.row_clip belong to exchange.mode = noised, not {exchange.mode}"
    if config.training.gate and config.training.ranks:
        return "training.gate mixes predicted ratings; a ranking has none, set training.gate = false"
    if config.model.form == "messages" and config.model.layers != 1:
        return f"model.form = messages has one layer, not {config.model.layers}; set model.layers = 1"
    if config.model.form == "factors" and exchange.mode != "none":
        return "model.form = factors has no neighbourhoods to exchange; set exchange.mode = none"
    if config.model.generator and (config.model.form != "propagation" or not config.model.estimators):
        return "model.generator needs model.form = propagation and model.estimators"
    if config.model.generator and exchange.mode == "none":
        return "model.generator learns from exchanged neighbourhoods; choose an exchange.mode other than none"
    if exchange.backward and config.model.form != "messages":
        return "exchange.backward trains message embeddings; it needs model.form = messages"
    if exchange.backward and not config.model.estimators:
        return "exchange.backward needs finished neighbourhoods, which exact degrees are not; leave model.estimators on"
    if not config.model.own_messages and config.model.gnn == "gat":
        return "model.own_messages = false leaves GAT's attention nothing to learn from; use gcn or ggnn"
    if not config.model.own_messages and (config.model.form != "messages" or not config.model.estimators):
        return "model.own_messages = false needs model.form = messages and model.estimators"
    if exchange.bits < 32 and not config.model.estimators:
        return f"exchange.bits = {exchange.bits} has no room for exact degrees; use 32, or 64"
    if exchange.bits == 64 and exchange.mode != "exact":
        return f"exchange.bits = 64 belongs to exchange.mode = exact, not {exchange.mode}; use 16 or 32"
    if config.masking and gradients.mechanism not in ("ternary", "skellam"):
        return f"masking needs integers, and {gradients.mechanism} gradients are not; use ternary, skellam or masking=false"
    if abs(sum(config.split.fractions) - 1) > 1e-6 or min(config.split.fractions) < 0:
        return f"split.fractions = {list(config.split.fractions)} must be shares that add up to 1"
    return None


def _skellam_problem(config: Config) -> str | None:
    """What differential privacy of single ratings asks of the rest: nothing that a rating moves may go unbounded."""
    training, model = config.training, config.model
    wanted = {
        "masking = true (only sums are protected)": config.masking,
        "model.form = factors (a message depends on all of a user's ratings)": model.form == "factors" and not model.residual,
        "model.bound and training.error_clip (they bound what a rating moves)": model.bound and training.error_clip,
        "training.batch = 0, user_blocks = 1 and participation = 1 (every rating in every round)": not training.batch
        and training.user_blocks == 1
        and training.participation == 1,
        "l2_rating = 0 (it weighs by how many ratings there are)": not training.l2_rating,
        "rescales of 1": config.gradients.rescale_users == 1 and not config.gradients.rescale_by_ratings,
        "training.objective = rating": not training.ranks,
        "gradients.noise_multiplier, or train --epsilon, which chooses it": config.gradients.noise_multiplier,
    }
    missing = [name for name, there in wanted.items() if not there]
    return f"gradients.mechanism = skellam needs {missing[0]}; start from --preset private" if missing else None


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
    return sorted(f.name.removesuffix(".toml") for f in resources.files("verfedgnn").joinpath("presets").iterdir())


def read_preset(name: str, gnn: str = "gcn") -> dict[str, Any]:
    """The tree of a preset, by its name or in a file of one's own; what stands under the name of a GNN holds for that one."""
    if name.endswith(".toml"):
        tree = _read_toml(Path(name))
    elif name in presets():
        tree = tomllib.loads(resources.files("verfedgnn").joinpath(f"presets/{name}.toml").read_text("utf-8"))
    else:
        raise ConfigError(f"there is no preset '{name}'; there are: {', '.join(presets())}, or a file ending in .toml")
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
