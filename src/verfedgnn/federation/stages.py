"""The trainings of a federation, one after the other: of ratings and, if the configuration asks for it, of lists."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from verfedgnn.config import Config
from verfedgnn.federation.agreement import Agreement
from verfedgnn.runs.run_layout import LISTS


@dataclass(frozen=True)
class Stage:
    """One training of a federation: a complete exchange from Hello to Finished, with its own configuration and files."""

    name: Literal["ratings", "lists"]
    config: Config
    first: bool = True
    """Whether it is the first training, before which users are aligned."""
    last: bool = True
    """Whether no other training follows."""

    def folder(self, run: Path) -> Path:
        """Return the folder of this training in a run folder."""
        return run if self.first else run / LISTS


def list_stages(agreement: Agreement) -> list[Stage]:
    """Return the trainings that the members agreed on, in their order."""
    config = agreement.training_config
    name: Literal["ratings", "lists"] = "lists" if config.training.ranks else "ratings"
    if not config.trains_lists:
        return [Stage(name, config)]
    return [Stage(name, config, last=False), Stage("lists", config.for_lists(), first=False)]
