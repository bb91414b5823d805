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
from verfedgnn.reports.run_report import AUDIT
from verfedgnn.runs.run import Run, write_json
from verfedgnn.training.progress import Progress
from verfedgnn.training.train import train
from verfedgnn_research.attacks.coordinator_attack import attack_gradients
from verfedgnn_research.attacks.federation_sample import sample_items, sample_users
from verfedgnn_research.attacks.item_attack import attack_items
from verfedgnn_research.attacks.membership_inference import membership
from verfedgnn_research.attacks.overlap_attack import attack_overlap
from verfedgnn_research.baselines.pooled_parties import declare_sizes

THIS = "this run"
NOISE = 0.25
"""Noise of the variant with more noise."""
USERS = 1_000
"""Largest number of users in the federation that an audit records, unless it is thorough."""
ITEMS = 300
"""Largest number of items of each party in such an audit."""
VICTIMS = 200
"""Largest number of users whose items are attacked in such an audit."""
MODEL, GRADIENTS, ITEMS_OF_RATINGS, ITEMS_OF_LISTS, OVERLAP = PARTS = (
    "model",
    "gradients",
    "items",
    "lists",
    "overlap",
)
"""Kinds of findings about a variant: `items` and `lists` are from the two trainings."""


def safer(config: Config) -> dict[str, Config]:
    """Return variants of a configuration that reveal less, by name; variants that the configuration does
    not allow are left out.
    """
    changes: dict[str, dict[str, Any]] = {
        "masks": {"masking": True},
        "no exchange": {"masking": True, "exchange": "off"},
    }
    if config.model.solved:
        changes = {"noise": {"gradients.noise": NOISE}, "one model": {"model.raters": 0}}
    found: dict[str, Config] = {}
    for name, values in changes.items():
        try:
            changed = config.with_values(values)
        except ConfigError:
            continue
        if changed != config:
            found[name] = changed
    if not config.gradients.protects_ratings and not config.ranks:
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
        self.run = Run.load(folder, added=False).judged
        if len(self.run.parties) < 2:
            raise ConfigError(
                "an audit needs the parties of a whole federation, but this run holds one; choose a run of `verfedgnn train`"
            )
        self.parties = declare_sizes(self.run.parties)
        self.parts = self.run.parts
        if not thorough:
            rng = np.random.default_rng([self.run.config.seed, 12])
            self.parties, self.parts = sample_items(self.parties, self.parts, ITEMS)
            self.parties, self.parts = sample_users(self.parties, self.parts, USERS, rng)
            victims = min(victims, VICTIMS)
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
            f"{ITEMS:,} items of each party, {self.settings['ratings']:,} of {whole:,} ratings, "
            f"{self.settings['victims']:,} victims and {self.settings['rounds']:,} rounds. "
            "`--thorough` uses all users and items."
        )

    def _rounds(self, config: Config) -> int:
        """Return how many rounds are recorded."""
        return int(min(self.settings["rounds"], config.training.epochs))

    @property
    def steps(self) -> list[Step]:
        """All steps of the audit, in order."""
        return [Step(name, part) for name in self.variants for part in PARTS]

    def known(self, step: Step) -> bool:
        """Return whether the finding of a step is there."""
        return step.part in self.found.get(step.variant, {})

    def take(self, step: Step, watch: Callable[[float, int], None] = lambda done, rounds: None) -> None:
        """Produce and save the finding of a step; `watch` receives its finished rounds and their number."""
        config = self.variants[step.variant]
        rounds = self._rounds(config)
        finding: dict[str, Any] = {}
        if step.part == MODEL:
            finding = self._model(step.variant, config, watch)
        elif step.part == GRADIENTS:
            finding = attack_gradients(self.parties, config, rounds=rounds, seed=config.seed, watch=watch)
        elif step.part == OVERLAP:
            whole = declare_sizes(self.run.parties)
            finding = attack_overlap(
                whole, config, rounds=rounds, parts=self.run.parts, seed=config.seed, watch=watch
            )
        elif step.part == ITEMS_OF_RATINGS or config.trains_lists:
            lists = step.part == ITEMS_OF_LISTS
            attacked = config.for_lists() if lists else config.with_values({"lists": False})
            finding = attack_items(
                self.parties,
                attacked,
                rounds=self._rounds(attacked),
                parts=self.parts,
                victims=self.settings["victims"],
                items=ITEMS,
                watch=watch,
            )
        self.found.setdefault(step.variant, {})[step.part] = finding
        with writing(self.path.parent):
            make_folder(self.path.parent)
            write_json(self.path, {"settings": self.settings, "found": self.found})

    def conclude(self, headline: str, learnt: str) -> None:
        """Save the headline of a finished audit, and what it covered, for the report of the run."""
        settings = self.settings
        covered = (
            f"Covered: {settings['ratings']:,} ratings of a sample"
            if self.is_sampled
            else "Covered: all ratings"
        )
        lists = " and lists" if self.run.config.trains_lists else ""
        covered += f", trainings of ratings{lists}, {settings['rounds']:,} rounds and {settings['victims']:,} victims."
        write_json(
            self.path.with_name(AUDIT.name), {"headline": headline, "learnt": learnt, "covered": covered}
        )

    def _model(self, variant: str, config: Config, report: Callable[[float, int], None]) -> dict[str, Any]:
        ended: list[str] = []

        def watch(event: Progress) -> None:
            """Count the federation as half of a training, and the parties alone, which the gate needs, as the other half."""
            if event.label not in ended:
                ended.append(event.label)
            share = event.round / event.rounds
            if len(ended) > 1:
                share = 1 + (len(ended) - 2 + share) / len(self.parties)
            rounds = config.training.epochs
            report(rounds * share / (2 if config.training.gate else 1), rounds)

        trains = variant != THIS or self.is_sampled
        # Lists are attacked apart, and only judged models have a test part: their trainings would cost time here.
        unlisted = config.with_values({"lists": False, "final": False})
        trained = train(self.parties, unlisted, parts=self.parts, watch=watch) if trains else self.run
        run = self.run if variant == THIS else trained
        about = {
            "rmse": trained.metrics["test"]["rmse"],
            "privacy": run.metrics["privacy"],
            "membership": None,
        }
        if config.ranks:  # such a model predicts no ratings to compare
            return about
        models = [(m.users, m.items) for m in run.models]
        told = membership(run.prepared(), models, torch.Generator().manual_seed(config.seed))
        return about | {
            "membership": {"training": told.trained.to_dict(), "validation": told.control.to_dict()}
        }
