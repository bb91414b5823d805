"""The trainings that the lift of a run still needs, with their expected time from the run's own."""

from __future__ import annotations

from pathlib import Path

from verfedgnn.data.ratings import format_count
from verfedgnn.evaluation.seeds import find_saved_lift
from verfedgnn.reports.phrases import format_duration
from verfedgnn.reports.training_steps import StepClock, list_steps
from verfedgnn.runs.run import Run
from verfedgnn.training.cost_forecast import measured_cost


def plan_lift(run: Run, seeds: int, folder: Path | None = None) -> StepClock:
    """Return a clock of the trainings of a lift, without those of the run and of seeds whose lift is kept in `folder`."""
    names = [party.name for party in run.parties]
    trained = list_steps(names, run.config, lift=False)
    steps = list_steps(names, run.config, lift=True, seeds=seeds)
    for seed in range(run.config.seed, run.config.seed + seeds):
        if find_saved_lift(run, seed, folder) is not None:
            trained += [step for step in steps if _seed_of(step, run.config.seed) == seed]
    left = [step for step in steps if step not in trained]
    return StepClock(left, len(names), measured_cost(run) if left else None)


def describe_plan(run: Run, clock: StepClock) -> str | None:
    """Say which trainings a lift needs, and how long they take; None if it needs none."""
    seeds = {_seed_of(step, run.config.seed) for step in clock.steps}
    if not seeds:
        return None
    others = len(seeds - {run.config.seed})
    parts = ["to judge this run"] if run.config.seed in seeds else []
    if others:
        parts.append(f"to train and judge {format_count(others, 'more seed')}")
    took = run.metrics["seconds"] + run.metrics.get("lists", {}).get("seconds", 0.0)
    return (
        f"expected: about {format_duration(sum(clock.weights.values()))} {' and '.join(parts)} "
        f"(the federated training of this run took {format_duration(took)})"
    )


def _seed_of(step: str, own: int) -> int:
    """Return the seed of a step; the steps of the run's own seed do not name it."""
    return int(step.split(",")[0].removeprefix("seed ")) if step.startswith("seed ") else own
