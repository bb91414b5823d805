"""The content of metrics.json: accuracy, cost and privacy of a training, for one party or for all."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any

import torch

from verfedgnn.config import Config
from verfedgnn.runs.ledger import Ledger
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.prepared_data import Prepared
from verfedgnn.runs.run_evaluation import evaluate, rating_errors


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
