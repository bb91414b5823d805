"""Lift over several seeds: whether the verdicts of a run hold for other splits of the ratings and other beginnings.

Each further seed is a training of its own, with the parties and settings of the run. Its folder is deleted when its lift is known,
so that no second copy of the ratings remains.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import stdtrit

from verfedgnn.config import load_config
from verfedgnn.core.errors import ConfigError
from verfedgnn.core.files import lock_folder, make_folder, writing
from verfedgnn.evaluation.chance import GROUPS, decide_verdicts, p_value
from verfedgnn.evaluation.judged_party import WAYS
from verfedgnn.evaluation.lift import lift
from verfedgnn.evaluation.lift_points import summarise
from verfedgnn.runs.run import Run, describe_code_change, write_json
from verfedgnn.runs.run_layout import LIFT_FORMAT, SEEDS
from verfedgnn.training.progress import Stop, Watcher, never
from verfedgnn.training.train import resume, train

Row = dict[str, Any]


def lift_over_seeds(
    run: Run,
    seeds: int,
    *,
    folder: Path | None = None,
    watch: Watcher | None = None,
    stop: Stop = never,
) -> dict[str, Any]:
    """Return the lift of a run over its own seed and the following ones, `seeds` in all; see `combine_lifts`.

    With the run's `folder`, finished lifts are kept there and an interrupted training resumes. With one seed it is the lift of the run.
    """
    if len(run.parties) < 2:
        raise ConfigError("a lift compares parties with a federation, but this run holds one party")
    numbers = list(range(run.config.seed, run.config.seed + seeds))
    found = []
    kept = folder if seeds > 1 else None
    with nullcontext() if kept is None else lock_folder(kept):  # nobody is forgotten while a seed is trained
        for number in numbers:
            saved = find_saved_lift(run, number, folder)
            if saved is None:
                saved = _judge(run, number, folder, watch, stop)
            if kept is not None:
                with writing(kept):
                    make_folder(kept / SEEDS)
                    write_json(_file(kept, number), saved)
                shutil.rmtree(kept / SEEDS / str(number), ignore_errors=True)
            found.append(saved)
    return found[0] if seeds == 1 else combine_lifts(found, numbers)


def find_saved_lift(run: Run, seed: int, folder: Path | None) -> dict[str, Any] | None:
    """Return the lift of one seed if the run or its folder holds it; None if it must be computed."""
    known = run.metrics.get("lift") if seed == run.config.seed else None
    return _read(folder, seed) if known is None or "seeds" in known else known


def _judge(run: Run, seed: int, folder: Path | None, watch: Watcher | None, stop: Stop) -> dict[str, Any]:
    """Return the lift of one seed; seeds other than the run's are trained first."""
    options: dict[str, Any] = {"watch": watch, "stop": stop}
    if seed == run.config.seed:
        return lift(run, **options)
    if watch is not None:
        options["watch"] = lambda event: watch(replace(event, label=f"seed {seed}, {event.label}"))
    config = run.config.with_values({"seed": seed})
    place = None if folder is None else folder / SEEDS / str(seed)
    device = str(run.device)
    if place is not None and _is_begun(place):
        other = resume(place, device=device, **options)
    else:
        other = train(run.parties, config, out=place, overwrite=True, device=device, **options)
    return lift(other, **options)


def _is_begun(folder: Path) -> bool:
    """Return whether a folder holds a training that the installed code can resume."""
    file = folder / "config.toml"
    return file.is_file() and describe_code_change(load_config(file)) is None


def _file(folder: Path, seed: int) -> Path:
    return folder / SEEDS / f"{seed}.json"


def _read(folder: Path | None, seed: int) -> dict[str, Any] | None:
    """Return the saved lift of a seed; None if there is none of this format."""
    if folder is None or not _file(folder, seed).is_file():
        return None
    saved: dict[str, Any] = json.loads(_file(folder, seed).read_text("utf-8"))
    return saved if saved.get("format") == LIFT_FORMAT else None


def combine_lifts(lifts: Sequence[Mapping[str, Any]], seeds: Sequence[int]) -> dict[str, Any]:
    """Return one lift over several seeds, in the form of a single one.

    Figures are means over the seeds. With the gains g_k and their standard errors e_k, the variance of a gain is

        T = W + B,    W = mean of e_k² (other customers),    B = variance of the g_k (another seed),

    with the degrees of freedom of Welch and Satterthwaite. The interval says what other customers and one more seed would show. B is
    not divided by the number of seeds: a few seeds know B so badly that false verdicts would become frequent (tests/evaluation). A
    gain that does not have the same sign in every seed is never called yes or no.
    """
    found = _combine_tables(lifts)
    found["seeds"] = list(seeds)
    found |= {"short": lifts[0]["short"]} if "short" in lifts[0] else {}
    found["format"] = LIFT_FORMAT
    decide_verdicts(found)
    found["summary"] = summarise(found)
    return found


def _combine_tables(tables: Sequence[Mapping[str, Any]]) -> Row:
    first = tables[0]
    found: Row = {name: first[name] for name in ("metric", "training") if name in first}
    found["overall"] = _combine_rows([table["overall"] for table in tables], first["metric"])
    found["parties"] = []
    for rows in zip(*(table["parties"] for table in tables), strict=True):
        found["parties"].append(_combine_rows(rows, first["metric"]) | _combine_groups(rows, first["metric"]))
    found |= _combine_groups(tables, first["metric"])
    for part in ("newcomers", "lists"):
        if part in first:
            found[part] = _combine_tables([table[part] for table in tables])
    return found


def _combine_groups(tables: Sequence[Mapping[str, Any]], metric: str) -> Row:
    """Combine the rows of groups of customers that every seed has; a single group is left out, as in one lift."""
    found = {}
    for name in GROUPS:
        if name in tables[0]:
            by_key = [{_key(row): row for row in table[name]} for table in tables]
            keys = [key for key in by_key[0] if all(key in rows for rows in by_key)]
            rows = [_combine_rows([rows[key] for rows in by_key], metric) for key in keys]
            found[name] = rows if len(rows) > 1 else []
    return found


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in ("from", "to", "other_parties"))


def _combine_rows(rows: Sequence[Mapping[str, Any]], metric: str) -> Row:
    names = ("name", "gate", "customers", "from", "to", "other_parties")
    found: Row = {name: rows[0][name] for name in names if name in rows[0]}
    found |= {name: min(row[name] for row in rows) for name in ("cases", "users")}
    judged = [row for row in rows if row["gain"] is not None]
    ways = [way for way in WAYS if way in rows[0]]
    found |= {way: _mean([row[way] for row in judged]) for way in ways}
    for name in ("recall@20", "hitrate@20"):
        if name in rows[0]:
            found[name] = {way: _mean([row[name][way] for row in judged]) for way in ways}
    if len(judged) < len(rows):
        return found | {"reference": None, "gain": None, "pays": "cannot tell"}
    better = min if metric == "rmse" else max
    reference = better(("alone", "simple"), key=lambda way: found[way])
    gain = _combine_gains([row["gain"] for row in judged], found["users"], found[reference])
    return found | {"reference": reference, "gain": gain, "pays": "cannot tell"}


def _combine_gains(gains: Sequence[Mapping[str, float]], users: int, reference: float) -> Row:
    percents = np.array([gain["percent"] for gain in gains])
    within = float(np.mean([gain["error_percent"] ** 2 for gain in gains]))
    between = float(percents.var(ddof=1))
    mean = float(percents.mean())
    error = (within + between) ** 0.5
    parts = within**2 / max(1, users - 1) + between**2 / (len(gains) - 1)
    freedom = error**4 / parts if parts else 1.0
    margin = float(stdtrit(freedom, 0.975)) * error
    agree = bool((percents > 0).all() or (percents < 0).all())
    scale = reference / 100
    return {
        "value": mean * scale,
        "low": (mean - margin) * scale,
        "high": (mean + margin) * scale,
        "percent": mean,
        "low_percent": mean - margin,
        "high_percent": mean + margin,
        "error_percent": error,
        "margin_percent": margin,
        "spread_percent": float(percents.std(ddof=1)),
        "by_seed": percents.tolist(),
        "p": p_value(mean, error, freedom) if agree else 1.0,
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
