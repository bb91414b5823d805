"""The findings of `verfedgnn audit`: all attacks on one run and on safer variants of it.

Every finding is saved to RUN/audit/findings.json at once, so an interrupted audit resumes where it stopped.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from verfedgnn.config import Config
from verfedgnn.core.errors import ConfigError
from verfedgnn.core.files import make_folder, writing
from verfedgnn.research.attacks.coordinator_attack import attack_gradients
from verfedgnn.research.attacks.membership_inference import membership
from verfedgnn.research.attacks.overlap_attack import attack_overlap
from verfedgnn.research.attacks.sum_attacks import attack_sums
from verfedgnn.runs.run import Run, write_json
from verfedgnn.training.progress import Progress
from verfedgnn.training.train import train

THIS = "this run"
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

    def __init__(self, folder: Path, *, rounds: int, victims: int, compare: bool) -> None:
        self.run = Run.load(folder)
        if len(self.run.parties) < 2:
            raise ConfigError(
                "an audit needs the parties of a whole federation, but this run holds one; choose a run of `verfedgnn train`"
            )
        self.path = folder / "audit" / "findings.json"
        self.settings: dict[str, Any] = {
            "rounds": rounds,
            "victims": victims,
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
            finding = attack_gradients(self.run.parties, config, rounds=rounds, seed=config.seed, watch=count)
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
                self.run.parties, config, rounds=rounds, victims=victims, seed=config.seed, watch=count
            )
        self.found.setdefault(step.variant, {})[step.part] = finding
        with writing(self.path.parent):
            make_folder(self.path.parent)
            write_json(self.path, {"settings": self.settings, "found": self.found})

    def _model(self, variant: str, config: Config, count: Callable[[int, int], None]) -> dict[str, Any]:
        def watch(event: Progress) -> None:
            count(event.round, event.rounds)

        run = (
            self.run
            if variant == THIS
            else train(self.run.parties, config, parts=self.run.parts, watch=watch)
        )
        about = {"rmse": run.metrics["test"]["rmse"], "privacy": run.metrics["privacy"], "membership": None}
        if config.training.ranks:  # such a model predicts no ratings to compare
            return about
        models = [(m.users, m.items) for m in run.models]
        told = membership(run.prepared(), models, torch.Generator().manual_seed(config.seed))
        return about | {
            "membership": {"training": told.trained.to_dict(), "validation": told.control.to_dict()}
        }
