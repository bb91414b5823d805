"""The content of metrics.json: accuracy, cost and privacy of a training, for one party or for all."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.core.metrics import RankingScores, RatingErrors, Score, measure_errors, measure_ranking
from verfedgnn.core.pairs import Pairs
from verfedgnn.core.rating_means import fit_means
from verfedgnn.core.rating_scale import upper_quarter
from verfedgnn.protocol.replica import parameters_digest
from verfedgnn.runs.ledger import Ledger
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.prepared_data import Prepared


@dataclass(frozen=True)
class Trained:
    """The result of one training of the federation, before any mixture."""

    models: list[PartyModel]
    """Model of the best validation, for each party in order."""
    public: Tensor
    """Public parameters of the best validation, flat."""
    rounds: int
    best_round: int
    """Round of the best validation."""
    seconds: float
    """Seconds spent in rounds."""
    history: list[dict[str, Any]]
    ledger: Ledger
    privacy: dict[str, Any]
    """The `privacy` part of metrics.json."""


def build_metrics(
    prepared: Sequence[Prepared],
    models: Sequence[PartyModel],
    config: Config,
    trained: Trained,
    gates: Sequence[dict[str, dict[str, float]]] = (),
) -> dict[str, Any]:
    """Build the content of metrics.json for the served `models`; `gates` holds the weights of each party's mixture."""
    metrics = {
        **evaluate(prepared, models, ranks=config.ranks),
        "users": prepared[0].party.ratings.n_users,
        **summarise_cost(trained.ledger, trained.rounds, len(models), trained.seconds),
        "best_round": trained.best_round,
        "privacy": trained.privacy,
        "public": parameters_digest(trained.public),
        "data": [{"name": p.party.ratings.name, "notes": list(p.party.ratings.notes)} for p in prepared],
        "config": config.fingerprint(),
        "seed": config.seed,
        "environment": describe_environment(prepared[0].train.user.device),
    }
    for row, gate in zip(metrics["parties"], gates, strict=False):
        row["gate"] = gate
    if gates and not config.ranks:
        before = zip(prepared, trained.models, strict=True)
        errors = sum((_rating_errors(party, model, party.test) for party, model in before), RatingErrors())
        metrics["federated_model"] = {"rmse": errors.rmse}
    return metrics


def summarise_cost(ledger: Ledger, rounds: int, parties: int, seconds: float) -> dict[str, Any]:
    """Return the rounds, seconds and bytes of a training."""
    traffic = ledger.total(kind="RoundStart") + ledger.total(kind="RoundReply")
    return {
        "rounds": rounds,
        "seconds": round(seconds, 3),
        "bytes": {
            "up": ledger.total("up"),
            "down": ledger.total("down"),
            "per_party_per_round": round(traffic / max(1, rounds) / parties),
        },
    }


def history_entry(
    number: int, error: float, config: Config, ledger: Ledger, seconds: float
) -> dict[str, Any]:
    """Return one line of history.jsonl, the result of a validation."""
    judged = {f"valid_{name}": value for name, value in config.judged(error).items()}
    return {"round": number, **judged, "bytes": ledger.total(), "seconds": round(seconds, 3)}


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Describe the software and the device that a training ran on."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": name,
        "threads": torch.get_num_threads(),
    }


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
    judged: list[_Judged] = []
    for party, model, order in zip(parties, models, lists or models, strict=True):
        judged.append(_judge(party, None if ranks else model, order.score, k))
        table = party.party.ratings
        about = {"name": party.party.name, "items": table.n_items, "ratings": len(table)}
        rows.append(about | _figures(judged[-1:], k))
    return {**_figures(judged, k), "parties": rows}


class _Judged(NamedTuple):
    """Errors of a party's predictions, and its lists."""

    test: RatingErrors
    valid: RatingErrors
    means: RatingErrors
    """Errors of the means that `core.rating_means` fits, on the test part; without absolute errors."""
    lists: RankingScores
    popular: RankingScores
    """Lists of the items with the most training ratings."""


def _judge(party: Prepared, model: PartyModel | None, score: Score, k: int) -> _Judged:
    table, seen = party.party.ratings, [party.train, party.valid]
    counts = torch.bincount(party.train.item.long(), minlength=table.n_items).float()
    wanted = party.test.take(party.test.rating >= upper_quarter(table.scale))
    lists, popular = (
        measure_ranking(by, table.n_users, table.n_items, seen, wanted, k)
        for by in (score, lambda users: counts.repeat(len(users), 1))
    )
    if model is None:
        return _Judged(RatingErrors(), RatingErrors(), RatingErrors(), lists, popular)
    test, valid = (_rating_errors(party, model, pairs) for pairs in (party.test, party.valid))
    means = fit_means(party.input)
    squares = means.squared_error(means.user_offset, party.test, table.scale)
    return _Judged(test, valid, RatingErrors(squares, 0.0, len(party.test)), lists, popular)


def _figures(judged: Sequence[_Judged], k: int) -> dict[str, Any]:
    """Return the figures of some parties together."""
    test, valid, means = (
        sum(each, RatingErrors()) for each in zip(*(row[:3] for row in judged), strict=True)
    )
    lists, popular = (sum(each, RankingScores()) for each in zip(*(row[3:] for row in judged), strict=True))
    return {
        "test": {"rmse": test.rmse, "mae": test.mae, **lists.means(k)},
        "valid": {"rmse": valid.rmse, "mae": valid.mae},
        "means": {"rmse": means.rmse},
        "popularity": popular.means(k),
    }


def _rating_errors(party: Prepared, model: PartyModel, pairs: Pairs) -> RatingErrors:
    return measure_errors(model.vectors, model.items, pairs, party.party.ratings.scale)
