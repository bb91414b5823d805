"""Measurements and the questions of the report that they answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from verfedgnn.core.errors import RunError
from verfedgnn.reports.document import Block

Figures = dict[str, Any]


@dataclass(frozen=True)
class BenchScope:
    """How much a bench measures."""

    quick: bool = False
    """Whether sizes are small and trainings short. Such figures only show that everything works."""
    data: str = "ml-1m"
    """Data set of the comparisons with other recommenders and of the byte curves."""

    def pick(self, whole: Any, quick: Any) -> Any:
        """Return `quick` in a quick bench, else `whole`."""
        return quick if self.quick else whole


@dataclass(frozen=True)
class Task:
    """One measurement: the name of a function of this package, and its arguments."""

    name: str
    function: str
    """`module:function` in verfedgnn.research.bench, which takes `arguments` and returns figures."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    threads: int = 1
    needs: float = 1.0
    """Approximate memory in GB."""

    @property
    def about(self) -> dict[str, Any]:
        """Fields that a record must have in common with this task."""
        return {
            "function": self.function,
            "arguments": json.loads(json.dumps(self.arguments)),
            "threads": self.threads,
        }


@dataclass(frozen=True)
class Question:
    """A question of the report, with the tasks that measure it and the section that answers it."""

    name: str
    title: str
    tasks: Callable[[BenchScope], list[Task]]
    answer: Callable[[Mapping[str, Figures], str], Sequence[Block | None]]
    """Builds the section from figures by task and the folder of pictures."""


def choose_questions(names: Sequence[str], questions: Mapping[str, Question]) -> list[Question]:
    """Return the questions with these names, or all questions if no name is given."""
    unknown = [name for name in names if name not in questions]
    if unknown:
        raise RunError(f"no question is called '{unknown[0]}'; choose from: {', '.join(questions)}")
    return [question for name, question in questions.items() if not names or name in names]
