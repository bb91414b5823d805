"""Hyper-parameter tuning on the validation part, in a study on disk that can be resumed."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from verfedgnn.config import Config
from verfedgnn.config.tree import settings
from verfedgnn.core.errors import ConfigError, DivergedError, Interrupted
from verfedgnn.core.installed import installed_version
from verfedgnn.data import PartyData
from verfedgnn.training.progress import Progress
from verfedgnn.training.train import train


@dataclass(frozen=True)
class Range:
    """Values between two numbers, sampled evenly on a logarithmic scale."""

    low: float
    high: float


Space = Mapping[str, Range | Sequence[Any]]
"""Search space by the path of a setting: a range, or a list of values."""

SPACE: Space = {
    "training.lr": Range(0.02, 0.4),
    "training.l2": Range(0.1, 10.0),
}
"""Default search space of a model that is trained by gradients."""
SOLVED_SPACE: Space = {"model.dim": (16, 24, 32, 48, 64)}
"""Default search space of a model that is solved. It has no strengths to choose."""


@dataclass(frozen=True)
class Trial:
    """The state of a study after a trial, for progress lines."""

    number: int
    trials: int
    error: float | None
    """Best validation error (RMSE, or 1 - NDCG@20); None if the trial diverged or was pruned."""
    best: float
    values: dict[str, Any]


@dataclass(frozen=True)
class Tuned:
    """The result of a study: the best configuration, and how it was found."""

    config: Config
    error: float
    history: list[float | None]
    """Validation error of every trial, in order; None for trials without one."""
    provenance: str

    def to_preset(self) -> str:
        """Return a preset file: the whole configuration below a comment on how it was chosen."""
        return "".join(f"# {line}\n" for line in self.provenance.splitlines()) + "\n" + self.config.to_toml()


def space_of(config: Config) -> Space:
    """Return the default search space of a configuration."""
    return SOLVED_SPACE if config.model.solved else SPACE


def parse_space(texts: Sequence[str]) -> Space:
    """Parse `["training.lr=0.02:0.4", "model.dim=16|32"]` as a search space."""
    space: dict[str, Range | Sequence[Any]] = {}
    for text in texts:
        path, equals, value = text.partition("=")
        if not equals or path not in settings():
            raise ConfigError(
                f"--space '{text}' does not start with the full path of a setting; write training.lr=0.02:0.4 or model.dim=16|32"
            )
        try:
            low, colon, high = value.partition(":")
            space[path] = (
                Range(float(low), float(high)) if colon else [_number(part) for part in value.split("|")]
            )
        except ValueError:
            raise ConfigError(f"{path}: '{value}' is neither a range low:high nor a list a|b|c") from None
        found = space[path]
        if isinstance(found, Range) and not 0 < found.low < found.high:
            raise ConfigError(f"{path}: the range {value} must go from a number above 0 to a larger one")
    return space


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def tune(
    parties: Sequence[PartyData],
    config: Config,
    *,
    trials: int,
    study: Path,
    space: Space | None = None,
    device: str | torch.device = "cpu",
    watch: Callable[[Trial], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Tuned:
    """Run or resume a study until it has `trials` trials, and return the best configuration.

    The file `study` keeps the study. Trials that are clearly worse than others at the same round are pruned. When `stop()`
    turns true, raise `Interrupted`: the running trial is lost, the finished ones are kept.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space = space_of(config) if space is None else space
    base = config.with_values({"training.gate": False})
    about = _about(parties, base, space)
    try:
        found = optuna.create_study(
            study_name="verfedgnn",
            storage=f"sqlite:///{study.resolve()}",
            load_if_exists=True,
            pruner=optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=100),
        )
    except Exception as error:  # sqlalchemy raises many kinds
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"cannot open the study {study} ({reason}); choose a file in an existing folder"
        ) from None
    if found.user_attrs.get("about", about) != about:
        raise ConfigError(
            f"the study {study} was made with other data, settings or ranges; choose another --study"
        )
    found.set_user_attr("about", about)
    earlier = len(found.trials)  # a resumed study must not draw the same numbers again
    found.sampler = optuna.samplers.TPESampler(
        seed=config.seed + earlier, multivariate=True, n_startup_trials=8
    )
    complete = optuna.trial.TrialState.COMPLETE
    given_up = optuna.trial.TrialState.PRUNED

    def finished() -> list[Any]:
        """Return the trials that count: neither the running one nor interrupted ones."""
        return [t for t in found.trials if t.state in (complete, given_up)]

    if not finished():
        found.enqueue_trial(_given(base, space))  # the preset itself is the first trial

    def objective(trial: Any) -> float:
        values = {path: _suggest(trial, path, what) for path, what in space.items()}
        seen: list[float] = []

        def judge(event: Progress) -> None:
            if event.valid is not None:
                seen.append(base.error_of(event.valid))
                trial.report(seen[-1], event.round)
                if trial.should_prune():
                    raise optuna.TrialPruned

        try:
            train(parties, base.with_values(values), device=device, watch=judge, stop=stop)
        except DivergedError:
            raise optuna.TrialPruned from None
        return min(seen)

    def tell(_: Any, trial: Any) -> None:
        if watch is not None and trial.state in (complete, given_up):
            best = min((t.value for t in finished() if t.state == complete), default=math.inf)
            value = trial.value if trial.state == complete else None
            watch(Trial(len(finished()), trials, value, best, dict(trial.params)))

    try:
        found.optimize(objective, n_trials=max(0, trials - len(finished())), callbacks=[tell])
    except Interrupted:
        raise Interrupted(f"stopped; the study {study} keeps {len(finished())} of {trials} trials") from None
    if not any(t.state == complete for t in finished()):
        raise DivergedError("no trial finished without diverging; lower the range of training.lr")
    best = found.best_trial
    assert best.value is not None
    chosen = config.with_values(best.params)
    history = [t.value if t.state == complete else None for t in finished()]
    return Tuned(chosen, best.value, history, _provenance(parties, chosen, best, len(history), about))


def _suggest(trial: Any, path: str, what: Range | Sequence[Any]) -> Any:
    if isinstance(what, Range):
        return trial.suggest_float(path, what.low, what.high, log=True)
    return trial.suggest_categorical(path, list(what))


def _given(config: Config, space: Space) -> dict[str, Any]:
    """Return the values of a configuration that lie in the search space."""
    given = {}
    for path, what in space.items():
        value: Any = config.values().get(path)
        if isinstance(what, Range):
            if isinstance(value, int | float) and what.low <= value <= what.high:
                given[path] = value
        elif value in what:
            given[path] = value
    return given


def _about(parties: Sequence[PartyData], config: Config, space: Space) -> str:
    """Return a hash of a study's data, fixed settings and ranges."""
    fixed = config.model_dump(mode="json")
    for path in space:
        section = fixed
        *parents, leaf = path.split(".")
        for name in parents:
            section = section[name]
        section.pop(leaf, None)
    data = [
        (party.name, party.ratings.name, len(party.ratings), float(party.ratings.rating.sum()))
        for party in parties
    ]
    return hashlib.sha256(repr((data, fixed, sorted(space.items()))).encode()).hexdigest()[:16]


def _provenance(parties: Sequence[PartyData], config: Config, best: Any, trials: int, about: str) -> str:
    ratings = sum(len(party.ratings) for party in parties)
    names = ", ".join(party.ratings.name for party in parties[:3]) + (", ..." if len(parties) > 3 else "")
    ((name, value),) = config.judged(best.value).items()
    found = f"validation {name.upper()} {value:.5f}"
    return (
        f"Chosen by verfedgnn tune {installed_version()}: trial {best.number + 1} of {trials}, {found}.\n"
        f"Data: {names}, {len(parties)} parties, {ratings:,} ratings; seed {config.seed}; study {about}.\n"
        f"Started from preset {config.base}; tried: {', '.join(sorted(best.params))}."
    )
