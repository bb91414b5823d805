"""The content of metrics.json: accuracy, cost and privacy of a training, for one party or for all."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any

import torch

from verfedgnn.config import Config
from verfedgnn.core.metrics import RankingScores, RatingErrors, Score, measure_errors, measure_ranking
from verfedgnn.core.pairs import upper_quarter
from verfedgnn.core.rating_means import fit_means
from verfedgnn.runs.ledger import Ledger
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.prepared_data import Prepared


def build_metrics(
    prepared: Sequence[Prepared],
    models: Sequence[PartyModel],
    config: Config,
    ledger: Ledger,
    *,
    rounds: int,
    best_round: int,
    seconds: float,
    privacy: dict[str, Any],
    digest: str,
    gates: Sequence[dict[str, dict[str, float]]] | None = None,
    federated: Sequence[PartyModel] | None = None,
) -> dict[str, Any]:
    """Build the content of metrics.json.

    `digest` is the hash of the public parameters. `gates` holds the weights of each party's mixture, and `federated`
    the models before mixing.
    """
    metrics = {
        **evaluate(prepared, models, ranks=config.ranks),
        "users": prepared[0].party.ratings.n_users,
        **summarise_cost(ledger, rounds, len(models), seconds),
        "best_round": best_round,
        "privacy": privacy,
        "public": digest,
        "data": [{"name": p.party.ratings.name, "notes": list(p.party.ratings.notes)} for p in prepared],
        "config": config.fingerprint(),
        "seed": config.seed,
        "environment": describe_environment(prepared[0].train.user.device),
    }
    for row, gate in zip(metrics["parties"], gates or [], strict=False):
        row["gate"] = gate
    if federated is not None and not config.ranks:
        metrics["federated_model"] = {"rmse": rating_errors(prepared, federated).rmse}
    return metrics


def summarise_cost(ledger: Ledger, rounds: int, parties: int, seconds: float) -> dict[str, Any]:
    """Return the rounds, seconds and bytes of a training."""
    traffic = ledger.total(kind="RoundStart") + ledger.total(kind="RoundReply")
    return {
        "rounds": rounds,
        "seconds": round_seconds(seconds),
        "bytes": {
            "up": ledger.total("up"),
            "down": ledger.total("down"),
            "per_party_per_round": round(traffic / max(1, rounds) / parties),
        },
    }


def history_entry(round: int, error: float, config: Config, ledger: Ledger, seconds: float) -> dict[str, Any]:
    """Return one line of history.jsonl, the result of a validation."""
    judged = {f"valid_{name}": value for name, value in config.judged(error).items()}
    return {"round": round, **judged, "bytes": ledger.total(), "seconds": round_seconds(seconds)}


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Describe the software and the device that a training ran on."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": name,
        "threads": torch.get_num_threads(),
    }


def round_seconds(seconds: float) -> float:
    """Round seconds to milliseconds."""
    return round(seconds, 3)


def evaluate(
    parties: Sequence[Prepared],
    models: Sequence[PartyModel],
    k: int = 20,
    *,
    ranks: bool = False,
    lists: Sequence[PartyModel] | None = None,
) -> dict[str, Any]:
    """Return `test`, `valid`, `means`, `popularity` and `parties` of metrics.json for the parties' served models.

    Predictions are clipped to the party's scale, as in serving. `lists` are the models that order lists, by default `models`. A
    test item is wanted if its rating is in the upper quarter of the scale. Items that a user rated in the training or
    validation part are not ranked. With `ranks`, the models predict no ratings and have no RMSE. `means` has the RMSE of each
    party's own user and item means, `popularity` the quality of lists of the items with the most training ratings.
    """
    rows: list[dict[str, Any]] = []
    tests = RatingErrors()
    valids = RatingErrors()
    simple = RatingErrors()
    rankings = RankingScores()
    populars = RankingScores()
    for party, model, order in zip(parties, models, lists or models, strict=True):
        scale = party.party.ratings.scale
        test = RatingErrors()
        valid = RatingErrors()
        means = RatingErrors()
        if not ranks:
            means = _errors_of_means(party)
            test = measure_errors(model.users, model.items, party.test, scale)
            valid = measure_errors(model.users, model.items, party.valid, scale)
        found = judge_lists(party, order.score, k)
        popular = judge_lists(party, popularity_score(party), k)
        tests += test
        valids += valid
        simple += means
        rankings += found
        populars += popular
        table = party.party.ratings
        rows.append(
            {
                "name": party.party.name,
                "items": table.n_items,
                "ratings": len(table),
                "test": _figures(test, found, k),
                "valid": {"rmse": valid.rmse, "mae": valid.mae},
                "means": {"rmse": means.rmse},
                "popularity": popular.means(k),
            }
        )
    return {
        "test": _figures(tests, rankings, k),
        "valid": {"rmse": valids.rmse, "mae": valids.mae},
        "means": {"rmse": simple.rmse},
        "popularity": populars.means(k),
        "parties": rows,
    }


def rating_errors(parties: Sequence[Prepared], models: Sequence[PartyModel]) -> RatingErrors:
    """Return the errors of all parties' models on their test parts."""
    total = RatingErrors()
    for party, model in zip(parties, models, strict=True):
        total += measure_errors(model.users, model.items, party.test, party.party.ratings.scale)
    return total


def judge_lists(party: Prepared, score: Score, k: int = 20) -> RankingScores:
    """Return the quality of the lists that `score` orders, on the test part of a party."""
    table = party.party.ratings
    wanted = party.test.take(party.test.rating >= upper_quarter(table.scale))
    return measure_ranking(score, table.n_users, table.n_items, [party.train, party.valid], wanted, k)


def _errors_of_means(party: Prepared) -> RatingErrors:
    """Return the errors on the test part of the means that `core.rating_means` fits; the absolute errors are not measured."""
    data = party.input
    means = fit_means(data.train, data.valid, data.users, data.items, data.scale)
    squares = means.squared_error(means.user_offset, party.test, data.scale)
    return RatingErrors(squares, 0.0, len(party.test))


def popularity_score(party: Prepared) -> Score:
    """Return a function that scores each item by its number of training ratings."""
    count = torch.bincount(party.train.item.long(), minlength=party.party.ratings.n_items).float()
    return lambda users: count.repeat(len(users), 1)


def _figures(errors: RatingErrors, found: RankingScores, k: int) -> dict[str, float | None]:
    return {"rmse": errors.rmse, "mae": errors.mae, **found.means(k)}
