"""What a round costs grows with the number of users, and no faster: counted in bytes, products and tensors, not in seconds."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import verfedgnn as vf
from synthetic_party import made_party, scale_config
from verfedgnn.core.random_streams import simulated_secret
from verfedgnn.protocol.coordinator import Coordinator
from verfedgnn.protocol.party import Candidate
from verfedgnn.runs.ledger import Ledger
from verfedgnn.training.local_runtime import LocalRuntime

USERS = 2048


class Largest(TorchDispatchMode):
    """The number of values in the largest tensor that any operation gave."""

    def __init__(self) -> None:
        super().__init__()
        self.values = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for each in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(each, torch.Tensor) and each.layout == torch.strided:
                self.values = max(self.values, each.untyped_storage().nbytes() // each.element_size())
        return out


class Touched(TorchDispatchMode):
    """How many values all operations read and wrote, together."""

    def __init__(self) -> None:
        super().__init__()
        self.values = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for each in tree_leaves((args, kwargs, out)):
            if isinstance(each, torch.Tensor):
                self.values += each.numel() if each.layout == torch.strided else each._nnz()
        return out


def federation(users: int, parties: int = 3, **values: Any) -> LocalRuntime:
    """Parties of one size, whatever their number."""
    config = scale_config(dim=8, participation=1.0, **values)
    data = [made_party(f"party-{p:02}", users, users // 32, 2 * users, 1, seed=p) for p in range(parties)]
    members = [Candidate(each, config, secret=simulated_secret(0, p)) for p, each in enumerate(data)]
    return LocalRuntime(Coordinator(config, [each.name for each in data]), members)


def sent(runtime: LocalRuntime, warm: int = 2, rounds: int = 3) -> dict[str, float]:
    """Bytes a party and round, once sums are there to be told."""
    for _ in range(warm):
        runtime.round()
    runtime.ledger = Ledger()
    for _ in range(rounds):
        runtime.round()
    share = max(1, rounds) * len(runtime.parties)
    return {"up": runtime.ledger.total("up") / share, "down": runtime.ledger.total("down") / share}


def test_bytes_grow_in_proportion_to_users() -> None:
    sizes = [sent(federation(n * USERS)) for n in (1, 2, 4)]
    for smaller, larger in pairwise(sizes):
        for way in ("up", "down"):
            assert larger[way] / smaller[way] == pytest.approx(2, rel=0.05)


def test_a_party_sends_and_receives_as_much_among_many_as_among_few() -> None:
    few, more, many = (sent(federation(USERS, parties)) for parties in (3, 6, 12))
    assert more["up"] == pytest.approx(few["up"], rel=0.1)
    assert many["up"] == pytest.approx(few["up"], rel=0.1)
    assert many["down"] < 1.5 * few["down"]  # a sum of more signs has a few bits more, and is compressed less


@pytest.mark.parametrize("gnn", ["gcn", "gat", "ggnn"])
def test_nothing_in_a_round_has_a_row_and_a_column_per_user(gnn: str) -> None:
    largest, taken = [], []
    for users in (USERS, 2 * USERS):
        config = vf.Config.preset(
            "paper",
            model=gnn,
            dim=8,
            exchange=0,
            unprotected="projection",
            batch=0,
            epochs=100,
            evaluate_every=100,
        )  # type: ignore[arg-type]
        party = Candidate(
            made_party("party-0", users, 60, 2 * users, 1), config, secret=simulated_secret(0, 1)
        )
        runtime = LocalRuntime(Coordinator(config, ["party-0"]), [party])
        with Largest() as seen:
            runtime.round()
        tracemalloc.start()
        runtime.round()
        taken.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        largest.append(seen.values)
    rows = USERS // 5
    assert largest[0] < USERS * rows / 8
    assert largest[1] <= 2.05 * largest[0]
    assert taken[1] < 2.2 * taken[0]


@pytest.mark.parametrize("grows", ["users", "items", "ratings", "dim", "layers"])
def test_a_party_touches_and_sends_no_more_than_in_proportion(grows: str) -> None:
    touched, sizes = [], []
    for factor in (1, 2, 4):
        size = {"users": USERS, "items": 256, "ratings": 2 * USERS, "dim": 8, "layers": 1}
        size[grows] *= factor
        config = scale_config(dim=size["dim"], layers=size["layers"], participation=1.0)
        data = [
            made_party(f"party-{p}", size["users"], size["items"], size["ratings"], 1, seed=p)
            for p in range(3)
        ]
        members = [Candidate(each, config, secret=simulated_secret(0, p)) for p, each in enumerate(data)]
        runtime = LocalRuntime(Coordinator(config, [each.name for each in data]), members)
        sent(runtime, rounds=0)
        with Touched() as seen:
            runtime.round()
        touched.append(seen.values)
        sizes.append(sum(sent(runtime, warm=0).values()))
    for smaller, larger in pairwise(touched):
        assert larger / smaller < 2**1.1
    for smaller, larger in pairwise(sizes):
        assert larger / smaller < 2**1.1
    if grows in ("users", "dim"):  # which all that is touched and sent is about
        assert touched[2] / touched[0] > 3
        assert sizes[2] / sizes[0] > (
            1.1 if grows == "users" else 2
        )  # rows of users without ratings pack well
