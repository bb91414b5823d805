"""The findings of `verfedgnn audit`: all attacks on one run and on safer variants of it.

Every finding is saved to RUN/audit/findings.json at once, so an interrupted audit resumes where it stopped.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from verfedgnn.config import Config
from verfedgnn.core.errors import ConfigError
from verfedgnn.core.files import make_folder, writing
from verfedgnn.research.attacks.coordinator_attack import attack_gradients
from verfedgnn.research.attacks.federation_sample import sample_items, sample_users
from verfedgnn.research.attacks.membership_inference import membership
from verfedgnn.research.attacks.overlap_attack import attack_overlap
from verfedgnn.research.attacks.sum_attacks import attack_sums
from verfedgnn.runs.run import Run, write_json
from verfedgnn.training.progress import Progress
from verfedgnn.training.train import train

THIS = "this run"
USERS = 1_000
"""Largest number of users that an audit attacks, unless it is thorough."""
ITEMS = 500
"""Largest number of items of each party in such an audit."""
TRAINING_EFFORT = 3.0
"""Duration of a training, with its lists and gates, per round of ratings, as a multiple of a recorded round."""
SUMS_EFFORT = 4.0
"""Duration of recording sums and of attacking them, in the same unit."""
PARTS = ("model", "gradients", "sums", "overlap")
"""Kinds of findings about a variant."""


def safer(config: Config) -> dict[str, Config]:
    """Return variants of a configuration that reveal less, by name; variants that the configuration does
    not allow are left out.
    """
    changes: dict[str, dict[str, Any]] = {
        "masks": {"masking": True},
        "noise on the sums": {
            "masking": True,
            "exchange.mode": "noised",
            "exchange.noise": 0.05,
            "exchange.row_clip": 1.0,
        },
        "no exchange": {"masking": True, "exchange.mode": "off"},
    }
    found: dict[str, Config] = {}
    for name, values in changes.items():
        if name == "noise on the sums" and config.exchange.mode not in ("masked", "exact"):
            continue
        try:
            changed = config.with_values(values)
        except ConfigError:
            continue
        if changed != config:
            found[name] = changed
    if config.gradients.mechanism != "skellam" and not config.training.ranks:
        found["preset private"] = Config.preset("private").model_copy(
            update={"seed": config.seed, "split": config.split}
        )
    return found


@dataclass(frozen=True)
class Step:
    """One kind of finding about one variant."""

    variant: str
    part: str


class Audit:
    """The findings about a run so far, and the attacks that produce the missing ones."""

    def __init__(
        self, folder: Path, *, rounds: int, victims: int, compare: bool, thorough: bool = False
    ) -> None:
        self.run = Run.load(folder, added=False)
        if len(self.run.parties) < 2:
            raise ConfigError(
                "an audit needs the parties of a whole federation, but this run holds one; choose a run of `verfedgnn train`"
            )
        self.parties = self.run.parties
        self.parts = self.run.parts
        if not thorough:
            rng = np.random.default_rng([self.run.config.seed, 12])
            self.parties, self.parts = sample_items(self.parties, self.parts, ITEMS)
            self.parties, self.parts = sample_users(self.parties, self.parts, USERS, rng)
        self.path = folder / "audit" / "findings.json"
        self.settings: dict[str, Any] = {
            "rounds": rounds,
            "victims": victims,
            "ratings": sum(len(party.ratings) for party in self.parties),
            "config": self.run.config.fingerprint(),
        }
        self.variants = {THIS: self.run.config, **(safer(self.run.config) if compare else {})}
        self.found: dict[str, dict[str, Any]] = self._before() or {}

    def _before(self) -> dict[str, dict[str, Any]] | None:
        try:
            saved = json.loads(self.path.read_text())
        except (OSError, ValueError):
            return None
        return saved["found"] if isinstance(saved, dict) and saved.get("settings") == self.settings else None

    @property
    def is_sampled(self) -> bool:
        """Whether the attacks use a part of the run's ratings only."""
        return bool(self.settings["ratings"] < sum(len(party.ratings) for party in self.run.parties))

    def describe_sample(self) -> str:
        """Say which part of the data the attacks use."""
        whole = sum(len(party.ratings) for party in self.run.parties)
        return (
            f"The attacks and the trainings of variants use a sample: {self.parties[0].ratings.n_users:,} users, at most "
            f"{ITEMS:,} items of each party, {self.settings['ratings']:,} of {whole:,} ratings. "
            "`--thorough` uses all of them."
        )

    def effort(self, step: Step) -> float:
        """Return how long a step takes, as a multiple of one recorded round."""
        config = self.variants[step.variant]
        recorded = min(self.settings["rounds"], config.training.epochs)
        if step.part == "model":
            trains = step.variant != THIS or self.is_sampled
            return TRAINING_EFFORT * self.run.metrics["rounds"] if trains else 1.0
        if step.part == "sums":
            return SUMS_EFFORT * recorded if config.exchange.mode != "off" else 1.0
        return float(recorded)

    @property
    def steps(self) -> list[Step]:
        """All steps of the audit, in order."""
        return [Step(name, part) for name in self.variants for part in PARTS]

    def known(self, step: Step) -> bool:
        """Return whether the finding of a step is there."""
        return step.part in self.found.get(step.variant, {})

    def take(self, step: Step, watch: Callable[[float], None] = lambda share: None) -> None:
        """Produce and save the finding of a step; `watch` receives the finished share."""
        config = self.variants[step.variant]

        def count(round: int, rounds: int) -> None:
            watch(round / rounds)

        rounds = min(self.settings["rounds"], config.training.epochs)
        victims = self.settings["victims"]
        if step.part == "model":
            finding = self._model(step.variant, config, count)
        elif step.part == "gradients":
            finding = attack_gradients(self.parties, config, rounds=rounds, seed=config.seed, watch=count)
        elif step.part == "overlap":
            finding = attack_overlap(
                self.run.parties,
                config,
                rounds=rounds,
                parts=self.run.parts,
                seed=config.seed,
                watch=count,
            )
        elif config.exchange.mode == "off":
            finding = {}
        else:
            finding = attack_sums(
                self.parties, config, rounds=rounds, victims=victims, seed=config.seed, watch=count
            )
        self.found.setdefault(step.variant, {})[step.part] = finding
        with writing(self.path.parent):
            make_folder(self.path.parent)
            write_json(self.path, {"settings": self.settings, "found": self.found})

    def _model(self, variant: str, config: Config, count: Callable[[int, int], None]) -> dict[str, Any]:
        def watch(event: Progress) -> None:
            count(event.round, event.rounds)

        trains = variant != THIS or self.is_sampled
        trained = train(self.parties, config, parts=self.parts, watch=watch) if trains else self.run
        run = self.run if variant == THIS else trained
        about = {
            "rmse": trained.metrics["test"]["rmse"],
            "privacy": run.metrics["privacy"],
            "membership": None,
        }
        if config.training.ranks:  # such a model predicts no ratings to compare
            return about
        models = [(m.users, m.items) for m in run.models]
        told = membership(run.prepared(), models, torch.Generator().manual_seed(config.seed))
        return about | {
            "membership": {"training": told.trained.to_dict(), "validation": told.control.to_dict()}
        }
