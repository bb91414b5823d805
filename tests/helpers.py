"""Helpers of several test modules: a small configuration, a small federation, bit-for-bit equality."""

from __future__ import annotations

from typing import Any

import torch

import verfedgnn as vf
from verfedgnn.protocol.party.policy import LOCAL, Policy
from verfedgnn.runs.prepared_data import prepare
from verfedgnn.training.local_runtime import LocalRuntime, local_federation


def config(**values: Any) -> vf.Config:
    return vf.Config.preset("paper", **({"batch": 400, "epochs": 4} | values))


def same(a: vf.Run, b: vf.Run) -> None:
    """Assert that two runs are bit-identical except for times."""
    timeless = [{k: v for k, v in r.metrics.items() if k not in ("seconds", "environment")} for r in (a, b)]
    assert timeless[0] == timeless[1]
    assert torch.equal(a.public, b.public)
    for mine, theirs in zip(a.models, b.models, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(vars(mine).values(), vars(theirs).values(), strict=True))
    assert [(h["round"], h["valid_rmse"], h["bytes"]) for h in a.history] == [
        (h["round"], h["valid_rmse"], h["bytes"]) for h in b.history
    ]
    assert a.ledger.to_dict() == b.ledger.to_dict()


def federation(
    parties: list[vf.PartyData], chosen: vf.Config, *, stack: bool = True, policy: Policy = LOCAL
) -> LocalRuntime:
    prepared = prepare(parties, chosen, torch.device("cpu"))
    return local_federation([p.input for p in prepared], chosen, stack=stack, policy=policy)
