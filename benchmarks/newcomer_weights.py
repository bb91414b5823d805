"""Compare ways to choose the weights of newcomers' lists. Writes results/newcomer-weights/CASE-SEED.json.

    VERFEDGNN_DATA=... .venv/bin/python benchmarks/newcomer_weights.py [--only amazon ciao-any] [--seeds 0 1 2] [--device cuda]
    .venv/bin/python benchmarks/newcomer_weights.py --table

Newcomers to choose by are a tenth of the users that is neither withheld nor tested by `split.kind = newcomers`; those that are
tested there are left out of everything. Each way is judged by NDCG@20 over these newcomers, as a gain over popularity.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import replace
from typing import Any

import torch

from pays_numbers import RESULTS, read_case
from verfedgnn.config import Config
from verfedgnn.core.list_metrics import rank_each
from verfedgnn.data import TEST, PartyData, split_by_rating
from verfedgnn.data.splits import draw_users
from verfedgnn.evaluation.judged_party import count_elsewhere
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.prepared_data import Prepared, prepare
from verfedgnn.training.list_stack import judge_users, search_weights
from verfedgnn.training.loop import TrainingLoop
from verfedgnn.training.party_gate import gate_party, train_own, unseen_parts
from verfedgnn.training.rating_stack import mix_models
from verfedgnn.training.simple_models import liked, popularity_model, training_counts

FOLDER = RESULTS / "newcomer-weights"
CASES = ("amazon", "ciao-all", "ciao-any", "genre", "ml-100k", "book-crossing")
ROUNDS = (100, 200)
"""Numbers of rounds without withheld users."""
LEFT_OUT = 3
"""Part of ratings that are in no part."""
MODELS = ("popularity", "alone", "federated")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=list(CASES))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        return print(table())
    torch.set_num_threads(1)
    FOLDER.mkdir(exist_ok=True)
    for case in options.only:
        for seed in options.seeds:
            record = {
                "case": case,
                "seed": seed,
                "parties": measure(case, seed, torch.device(options.device)),
            }
            (FOLDER / f"{case}-{seed}.json").write_text(json.dumps(record) + "\n")
            print(case, seed, flush=True)


def measure(case: str, seed: int, device: torch.device) -> list[dict[str, Any]]:
    parties = read_case(case, seed)
    config = Config.preset("best", seed=seed).with_code().for_parties(len(parties)).for_lists()
    if case == "book-crossing":
        config = config.with_values({"epochs": 400})
    withholding = config.with_values({"newcomer_rounds": max(ROUNDS)})
    prepared = prepare(parties, withholding, device, [split(party, seed) for party in parties])
    early = train_early(prepared, config)
    trained = TrainingLoop(prepared, config.with_values({"newcomer_rounds": 0})).run()
    rows = []
    for index, (party, others) in enumerate(zip(prepared, count_elsewhere(prepared), strict=True)):
        alone = train_own(party, config)["alone"]
        models = dict(zip(MODELS, (popularity_model(party.input), alone, trained.models[index]), strict=True))
        snapshots = {rounds: found[index] for rounds, found in early.items()}
        known = torch.from_numpy(others.parties).to(device) > 0
        rows.append({"name": party.party.name, **compare(party, models, snapshots, known, config)})
    return rows


def split(party: PartyData, seed: int) -> Any:
    drawn = draw_users(party.ratings, party.name, seed)[party.ratings.user]
    part = split_by_rating(party.ratings, fractions=(0.75, 0.25, 0.0), seed=seed)
    part[(drawn >= 0.5) & (drawn < 0.6)] = TEST
    part[drawn < 0.1] = LEFT_OUT
    return part


def train_early(prepared: list[Prepared], config: Config) -> dict[int, list[PartyModel]]:
    """Return the parties' models after some rounds without the withheld users."""
    inputs = [replace(party, train=party.input.without_withheld().train, withheld=None) for party in prepared]
    loop = TrainingLoop(inputs, config.with_values({"newcomer_rounds": 0}))
    found = {}
    while loop.coordinator.round < max(ROUNDS):
        closed = loop.runtime.round()
        if closed.round in ROUNDS:
            evaluated = [party.progress.evaluated for party in loop.runtime.parties.values()]
            found[closed.round] = [
                PartyModel.from_arrays({key: value.clone() for key, value in each[1].items()})
                for each in evaluated
                if each is not None
            ]
    return found


def compare(
    party: Prepared,
    models: dict[str, PartyModel],
    early: dict[int, PartyModel],
    elsewhere: torch.Tensor,
    config: Config,
) -> dict[str, float]:
    """Return NDCG@20 over the newcomers to choose by, of single models and of ways to choose weights."""
    data = party.input
    counts = training_counts(data)
    wanted = liked(party.test, data.scale)
    wanted = wanted.take((counts[wanted.user.long()] == 0) & elsewhere[wanted.user.long()])
    every = list(models.values())

    def judge(weights: list[float]) -> float:
        model = mix_models(every, weights, weights, counts)
        found = rank_each(model.score, data.users, data.items, [party.train, party.valid], wanted)
        return float(found.ndcg.mean())

    judged = judge_users(every, data, wanted)
    found = {name: judge([float(name == other) for other in models]) for name in models}
    gated = gate_party(party, models["federated"], models["alone"], None, config)
    known = [gated.served.known[name] for name in models]
    found["weights of known customers"] = judge(known)
    found["best on these users"] = judge(search_weights(judged, None, 0.2))
    for factor in (0.5, 1.0, 2.0, 4.0):
        found[f"1 : {factor:g}"] = judge([1 / judged.spread[0], 0.0, factor / judged.spread[2]])
    withheld = liked(data.take_withheld(), data.scale)
    for rounds, snapshot in early.items():
        unseen = unseen_parts(models, snapshot, data)
        seen = judge_users([unseen[name] for name in models], data.without_withheld(), withheld)
        found[f"{rounds} rounds, from the best model, margin 0.2"] = judge(search_weights(seen, None, 0.2))
        start = [1 / seen.spread[0], 0.0, 2 / seen.spread[2]]
        for margin in (0.2, 2.0):
            name = f"{rounds} rounds, from 1 : 2, margin {margin:g}"
            found[name] = judge(search_weights(seen, start, margin))
    return found


def table() -> str:
    records = [json.loads(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*.json"))]
    cases = [case for case in CASES if any(record["case"] == case for record in records)]
    lines = [f"| way | {' | '.join(cases)} |", f"|---|{'---|' * len(cases)}"]
    for way in list(records[0]["parties"][0])[2:]:
        cells = []
        for case in cases:
            parties = [row for record in records if record["case"] == case for row in record["parties"]]
            gains = [100 * (row[way] / row["popularity"] - 1) for row in parties]
            cells.append(f"{statistics.mean(gains):+.1f} ({min(gains):+.1f})")
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
