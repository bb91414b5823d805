"""Lift: what joining gains each party, for ratings and for lists, for customers it knows and for newcomers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from verfedgnn.config import Config, presets
from verfedgnn.data import PartyData
from verfedgnn.evaluation.chance import decide_verdicts
from verfedgnn.evaluation.judged_party import (
    JudgedParty,
    count_elsewhere,
    judge_party,
    lift_by_party,
    lift_tables,
)
from verfedgnn.evaluation.lift_points import summarise
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.prepared_data import Prepared
from verfedgnn.runs.run import Run
from verfedgnn.runs.run_layout import LIFT_FORMAT
from verfedgnn.training.party_gate import gate_alone, train_own
from verfedgnn.training.progress import Stop, Watcher, never
from verfedgnn.training.simple_models import fit_party_means, means_model, popularity_model
from verfedgnn.training.train import train


def lift(run: Run, *, watch: Watcher | None = None, stop: Stop = never) -> dict[str, Any]:
    """Return the `lift` part of metrics.json: simple, alone and federated, with gains, intervals and verdicts.

    The gain in a row compares what the parties serve with the best that they have without joining, on the same test cases. That is
    the better of the row's figures `simple` (their means, or popularity for lists) and `alone` (the best mixture of these, EASE for
    lists, and models trained on their own ratings); `reference` names it. Newcomers need a second training that holds out all
    ratings of a tenth of the users at each party, unless the run's own split already does. Otherwise it is like the training of
    the run.
    """
    known = None
    second = run
    if run.config.split.kind != "newcomers":
        known = judge_models(run, watch=watch, stop=stop)
        held_out = run.config.with_values({"split.kind": "newcomers"})
        device = str(run.device)
        second = train(run.parties, held_out, device=device, watch=_named(watch), stop=stop)
    new = judge_models(second, watch=_named(watch), stop=stop)
    tables: dict[str, Any] = {}
    for judged, model in zip(known or new, _models(run), strict=True):
        tables["lists" if tables else "lift"] = _add_weights(lift_tables(judged), model)
    for name, judged in zip(tables, new, strict=True):
        tables[name]["newcomers"] = lift_tables([select_newcomers(each) for each in judged], newcomers=True)
    found: dict[str, Any] = tables["lift"]
    found["newcomers"]["training"] = "own" if known is None else "second"
    if "lists" in tables:
        found["lists"] = tables["lists"]
    return _conclude(found, run)


def quick_lift(run: Run) -> dict[str, Any] | None:
    """Return the lift for customers that the parties know, by party, from the models that the run holds.

    It trains nothing, so it has no newcomers. It is None for a run without a gate, or whose split holds
    out newcomers.
    """
    models = _models(run)
    if run.config.split.kind == "newcomers" or any(each.alone is None for each in models):
        return None
    tables = [_add_weights(lift_by_party(_judge(each)), each) for each in models]
    found = tables[0] if len(tables) == 1 else {**tables[0], "lists": tables[1]}
    return _conclude(found, run)


def _conclude(found: dict[str, Any], run: Run) -> dict[str, Any]:
    """Add the verdicts, the customers of each party, what to know about the training, and the summary."""
    decide_verdicts(found)
    for row, customers in zip(found["parties"], _count_customers(run.parties), strict=True):
        row["customers"] = customers
    found |= {"format": LIFT_FORMAT, **_note_short_training(run)}
    return found | {"summary": summarise(found)}


def _count_customers(parties: Sequence[PartyData]) -> list[dict[str, Any]]:
    """Return how many customers each party has, by the number of other parties that know them, and how many only others know."""
    here = np.zeros((len(parties), parties[0].ratings.n_users), bool)
    for row, party in zip(here, parties, strict=True):
        row[party.ratings.user] = True
    total = here.sum(0)
    return [
        {
            "by_other_parties": np.bincount(total[row] - 1, minlength=len(parties)).tolist(),
            "elsewhere_only": int(((total > 0) & ~row).sum()),
        }
        for row in here
    ]


def _note_short_training(run: Run) -> dict[str, Any]:
    """Return the epochs of a run and of its preset if it has fewer and its last validation was its best."""
    epochs = run.config.training.epochs
    preset = run.config.base if run.config.base in presets() else "best"
    usual = Config.preset(preset).training.epochs
    improves = any(each.metrics["best_round"] == each.metrics["rounds"] for each in _models(run))
    if epochs >= usual or not improves:
        return {}
    return {"short": {"epochs": epochs, "preset": preset, "usual": usual}}


def judge_models(run: Run, *, watch: Watcher | None = None, stop: Stop = never) -> list[list[JudgedParty]]:
    """Evaluate the run's models of ratings and, if there are any, those of lists."""
    return [_judge(each, watch=watch, stop=stop) for each in _models(run)]


def _models(run: Run) -> list[Run]:
    """Return the run's training of ratings and, if there is one, that of lists."""
    return [run] if run.lists is None else [run, run.lists]


def _add_weights(table: dict[str, Any], run: Run) -> dict[str, Any]:
    """Add the weights of its gate to the row of each party, if the run has gates."""
    for row, party in zip(table["parties"], run.metrics["parties"], strict=True):
        if "gate" in party:
            row["gate"] = party["gate"]
    return table


def _judge(run: Run, *, watch: Watcher | None = None, stop: Stop = never) -> list[JudgedParty]:
    """Evaluate the simple, alone and federated model of each party."""
    ranks = run.config.ranks
    prepared = run.prepared()
    alone = run.alone or _alone_models(run, prepared, watch, stop)
    elsewhere = count_elsewhere(prepared)
    judged = []
    for p, party in enumerate(prepared):
        ways = {
            "simple": simple_model(party, ranks=ranks),
            "alone": alone[p],
            "federated": run.models[p],
        }
        judged.append(judge_party(party, ways, elsewhere[p], ranks=ranks))
    return judged


def _alone_models(
    run: Run, prepared: Sequence[Prepared], watch: Watcher | None, stop: Stop
) -> list[PartyModel]:
    """Train each party's own models, for a run without a gate, and return the mixtures that they would serve alone."""
    return [
        gate_alone(party, train_own(party, run.config, watch=watch, stop=stop), run.config).model
        for party in prepared
    ]


def simple_model(party: Prepared, *, ranks: bool) -> PartyModel:
    """Return a party's simplest model: its means, or popularity for lists."""
    if ranks:
        return popularity_model(party.input)
    means = fit_party_means(party.input)
    return means_model(means, means.user_offset, party.train.user.device)


def select_newcomers(judged: JudgedParty) -> JudgedParty:
    """Return only the cases of users who are new to the party and known to another."""
    which = judged.newcomers
    return replace(
        judged,
        user=judged.user[which],
        values={way: values[which] for way, values in judged.values.items()},
        extra={
            way: {name: values[which] for name, values in figures.items()}
            for way, figures in judged.extra.items()
        },
        own_ratings=judged.own_ratings[which],
        other_parties=judged.other_parties[which],
        other_ratings=judged.other_ratings[which],
    )


def _named(watch: Watcher | None) -> Watcher | None:
    """Return a watcher that adds "newcomers" to the name of the training in each report."""
    if watch is None:
        return None
    return lambda event: watch(replace(event, label=f"newcomers, {event.label}"))
