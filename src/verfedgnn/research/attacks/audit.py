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
from verfedgnn.data.parties import declare_sizes
from verfedgnn.research.attacks.audit_clock import AuditStage
from verfedgnn.research.attacks.coordinator_attack import attack_gradients
from verfedgnn.research.attacks.federation_sample import sample_items, sample_users
from verfedgnn.research.attacks.membership_inference import membership
from verfedgnn.research.attacks.overlap_attack import attack_overlap
from verfedgnn.research.attacks.sum_attacks import ATTACKS, NOISE_EXPECTED, ODDS, RECORDING, attack_sums
from verfedgnn.research.attacks.table_attack import attack_tables
from verfedgnn.runs.run import Run, write_json
from verfedgnn.training.progress import Progress
from verfedgnn.training.train import train

THIS = "this run"
USERS = 1_000
"""Largest number of users in the federation that an audit records, unless it is thorough."""
ITEMS = 300
"""Largest number of items of each party in such an audit."""
VICTIMS = 200
"""Largest number of users whose items are attacked in such an audit."""
TRAINING, GRADIENTS, OVERLAP, TABLES = "training", "gradients", "overlap", "tables"
WORK = {TRAINING: 0.03, GRADIENTS: 0.012, OVERLAP: 0.012, TABLES: 0.1, RECORDING: 0.012, ATTACKS: 0.03}
"""Seconds of a stage per round, measured with the largest sample on one core."""
ODDS_WORK = 0.03
"""Seconds of the odds of one victim at `ITEMS` items; they grow with the third power of the items."""
PARTS = ("model", "gradients", "sums", "tables", "overlap")
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

    def stages(self, number: int, step: Step) -> list[AuditStage]:
        """Return the stages of a step with their estimated work."""
        config = self.variants[step.variant]
        rounds = self._rounds(config)
        if step.part == "model":
            trains = step.variant != THIS or self.is_sampled
            work = WORK[TRAINING] * config.training.epochs if trains else 0.0
            return [AuditStage(number, TRAINING, work)]
        if step.part != "sums":
            return [AuditStage(number, step.part, WORK[step.part] * rounds)]
        if config.exchange.mode == "off":
            return []
        stages = [AuditStage(number, kind, WORK[kind] * rounds) for kind in (RECORDING, ATTACKS)]
        if config.exchange.mode == "noised":
            items = max(party.ratings.n_items for party in self.parties)
            victims = min(self.settings["victims"], self.parties[0].ratings.n_users)
            work = len(NOISE_EXPECTED) * victims * ODDS_WORK * (items / ITEMS) ** 3
            stages.append(AuditStage(number, ODDS, work))
        return stages

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

    def take(self, step: Step, watch: Callable[[str, float], None] = lambda stage, share: None) -> None:
        """Produce and save the finding of a step; `watch` receives the kind of a stage and its finished share."""
        config = self.variants[step.variant]

        def count(kind: str) -> Callable[[int, int], None]:
            return lambda round, rounds: watch(kind, round / rounds)

        rounds = self._rounds(config)
        if step.part == "model":
            finding = self._model(step.variant, config, watch)
        elif step.part == "gradients":
            finding = attack_gradients(
                self.parties, config, rounds=rounds, seed=config.seed, watch=count(GRADIENTS)
            )
        elif step.part == "overlap":
            finding = attack_overlap(
                declare_sizes(self.run.parties),
                config,
                rounds=rounds,
                parts=self.run.parts,
                seed=config.seed,
                watch=count(OVERLAP),
            )
        elif step.part == "tables":
            finding = attack_tables(
                self.parties,
                config,
                rounds=rounds,
                victims=self.settings["victims"],
                seed=config.seed,
                method="party, fakes",
                watch=count(TABLES),
            )
        elif config.exchange.mode == "off":
            finding = {}
        else:
            victims = self.settings["victims"]
            finding = attack_sums(
                self.parties, config, rounds=rounds, victims=victims, seed=config.seed, watch=watch
            )
        self.found.setdefault(step.variant, {})[step.part] = finding
        with writing(self.path.parent):
            make_folder(self.path.parent)
            write_json(self.path, {"settings": self.settings, "found": self.found})

    def _model(self, variant: str, config: Config, report: Callable[[str, float], None]) -> dict[str, Any]:
        ended: list[str] = []

        def watch(event: Progress) -> None:
            """Count the federation as half of a training, and the parties alone, which the gate needs, as the other half."""
            if event.label not in ended:
                ended.append(event.label)
            share = event.round / event.rounds
            if len(ended) > 1:
                share = 1 + (len(ended) - 2 + share) / len(self.parties)
            report(TRAINING, share / (2 if config.training.gate else 1))

        trains = variant != THIS or self.is_sampled
        # Lists are not attacked, so their training would only cost time.
        unlisted = config.with_values({"lists": False})
        trained = train(self.parties, unlisted, parts=self.parts, watch=watch) if trains else self.run
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
