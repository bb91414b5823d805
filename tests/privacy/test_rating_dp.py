"""Differential privacy of single ratings: what bounds a rating's pull, noise, budgets, and an attack that stays below them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import verfedgnn as vf
from helpers import federation, page_text, same
from verfedgnn.core.graph import build_graph
from verfedgnn.core.key_stream import NoiseKey, derive_key
from verfedgnn.core.pairs import Pairs, PartyInput
from verfedgnn.core.random_streams import simulated_secret
from verfedgnn.privacy.rating_dp import (
    add_item_noise,
    fit_budget,
    rating_epsilon,
    release_gradient,
    release_validation,
    sensitivity,
    unit,
)
from verfedgnn.privacy.release_events import Release, ReleaseEvent, compose_epsilon
from verfedgnn.protocol.forward_backward import Batch, compute
from verfedgnn.protocol.messages import Hello, RoundReply
from verfedgnn.protocol.party_state import LOCAL, PartySetup
from verfedgnn.protocol.release_ledger import GRADIENT, ReleaseLedger

USERS, ITEMS = 6, 5


def key(seed: int) -> NoiseKey:
    return NoiseKey(simulated_secret(seed, 0))


def private(**values: Any) -> vf.Config:
    return vf.Config.preset("private").with_values(values)


def gradients(pairs: Pairs, config: vf.Config, seed: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Public and private gradient of one party at a state that a training could be in: embeddings within their bound."""
    assert config.model.bound is not None
    data = PartyInput("p", USERS, ITEMS, (1.0, 5.0), pairs, pairs)
    setup = PartySetup(data, config, simulated_secret(1, 0), torch.device("cpu"), LOCAL)
    state = torch.Generator().manual_seed(seed)
    public = torch.randn(setup.model.size, generator=state)
    users = setup.model.views(public)["users"]
    users.mul_(config.model.bound / users.norm(dim=-1, keepdim=True).clamp(min=config.model.bound))
    items = torch.randn(ITEMS, config.model.dim, generator=state)
    items *= config.model.bound / items.norm(dim=1, keepdim=True).clamp(min=config.model.bound)
    own = {"items": items, "item_bias": torch.randn(ITEMS, 1, generator=state)}
    train = setup.targets.train
    graph = build_graph(train.user.numpy(), train.item.numpy(), users=USERS, items=ITEMS)
    outcome = compute(setup.model, graph, public, own, config.training, batch=Batch(train, edges=True))
    return outcome.public_gradient, outcome.private_gradients


def pairs_of(cells: list[tuple[int, float]]) -> Pairs:
    code = torch.tensor([cell for cell, _ in cells])
    return Pairs(code // ITEMS, code % ITEMS, torch.tensor([rating for _, rating in cells]))


@given(
    st.dictionaries(
        st.integers(0, USERS * ITEMS - 1), st.sampled_from([1.0, 2.0, 3.0, 4.5, 5.0]), min_size=2
    ),
    st.integers(0, 2**31),
    st.floats(0.1, 3.0),
    st.floats(0.2, 2.0),
)
def test_a_rating_moves_a_gradient_by_at_most_delta(
    ratings: dict[int, float], seed: int, clip: float, bound: float
) -> None:
    """With it and without it, at the same state: one row of users and one of items, each by at most Delta in l2."""
    config = private(error_clip=clip, bound=bound)
    cells = list(ratings.items())
    (a, own_a), (b, own_b) = (gradients(pairs_of(each), config, seed) for each in (cells, cells[1:]))
    limit = sensitivity(config) * (1 + 1e-4) + 1e-4
    assert float((a - b).norm()) <= limit
    moved = torch.cat([own_a["items"] - own_b["items"], own_a["item_bias"] - own_b["item_bias"]], 1)
    assert float(moved.norm()) <= limit
    assert int(moved.any(1).sum()) <= 1


def test_noise_is_shared_out_so_that_the_others_have_all_of_it() -> None:
    """40,000 values of one of five parties: four of them have the variance asked for, within five standard errors."""
    config = private()
    values = release_gradient(torch.zeros(40_000), config, parties=5, sharing=5, key=key(0)).astype(
        float
    ) / unit(config)
    wanted = (config.gradients.noise_multiplier * sensitivity(config)) ** 2 / 4
    assert abs(values.var() / wanted - 1) < 5 * math.sqrt(2 / 40_000)
    assert abs(values.mean()) < 5 * math.sqrt(wanted / 40_000)
    noisy = add_item_noise({"items": torch.zeros(40_000, 1)}, config, key(1))["items"]
    assert abs(float(noisy.var()) / (4 * wanted) - 1) < 5 * math.sqrt(2 / 40_000)


def test_integers_are_gradients_to_a_fraction_of_the_noise() -> None:
    config, gradient = private(), torch.tensor([0.0, 1.5, -20.25])
    step = 1 / unit(config)
    assert step < config.gradients.noise_multiplier * sensitivity(config) / 256
    draws = [release_gradient(gradient, config, parties=3, sharing=3, key=key(seed)) for seed in range(300)]
    error = np.mean(draws, 0) * step - gradient.numpy()
    assert (
        np.abs(error) < 5 * config.gradients.noise_multiplier * sensitivity(config) / math.sqrt(600)
    ).all()
    assert draws[0].dtype == np.int32


# -- accounting ------------------------------------------------------------------------------------------------------------


def test_epsilon_is_that_of_gaussian_noise_to_rounding() -> None:
    """Fine integers: the Skellam bound comes near alpha / (2 z^2), and users and items make twice that."""
    config = private(noise_multiplier=10.0)
    event = ReleaseEvent("GaussianDpEvent", {"noise_multiplier": 10.0})
    normal = compose_epsilon([Release("gradients", 80, event)], 1e-6)
    assert normal <= rating_epsilon(config, rounds=40, validations=0) <= 1.02 * normal


def test_epsilon_grows_with_rounds_and_falls_with_noise() -> None:
    spent = [
        rating_epsilon(private(noise_multiplier=z), rounds=t, validations=0)
        for z, t in ((5, 10), (5, 20), (10, 20))
    ]
    assert spent[0] < spent[1]
    assert spent[2] < spent[1]
    few, many = (rating_epsilon(private(noise_multiplier=5.0), rounds=1, validations=v) for v in (0, 50))
    assert few < many, (
        "validation ratings count where they are released more often than training ratings are trained on"
    )


@pytest.mark.parametrize("wanted", [0.5, 1.0, 4.0, 20.0])
def test_a_budget_is_met_and_used_up(wanted: float) -> None:
    chosen = fit_budget(private(), wanted=wanted)
    spent = rating_epsilon(chosen, rounds=40, validations=4)
    assert 0.99 * wanted < spent <= wanted


def test_the_preset_is_epsilon_four() -> None:
    assert 3.95 < rating_epsilon(private(), rounds=40, validations=4) <= 4.0


def test_budgets_and_settings_that_cannot_be() -> None:
    with pytest.raises(vf.ConfigError, match=r"needs gradients\.mechanism = skellam; ternary"):
        fit_budget(vf.Config.preset("paper"), wanted=4)
    with pytest.raises(vf.ConfigError, match="no noise keeps"):
        fit_budget(private(), wanted=1e-9)
    for values, named in (
        ({"masking": False}, "masking"),
        ({"batch": 100}, "batch"),
        ({"error_clip": None}, "error_clip"),
        ({"participation": 0.5}, "participation"),
        ({"noise_multiplier": 0.0}, "noise_multiplier must be greater than 0"),
    ):
        with pytest.raises(vf.ConfigError, match=named):
            private(**values)
    with pytest.raises(vf.ConfigError, match="belongs to"):
        vf.Config.preset("paper").with_values({"gradients.noise_multiplier": 1.0})


def attacked(noise: float, trials: int) -> float:
    """A lower bound on epsilon, true in 99 of 100 repetitions: one round with and without a canary, told apart by its direction.

    The attacker knows everything else: the state, all other ratings, and what the canary adds to the gradient.
    """
    config = private(noise_multiplier=noise)
    others = [(3, 4.0), (9, 2.0), (22, 5.0)]
    (with_it, _), (without, _) = (
        gradients(pairs_of(each), config, 5) for each in ([*others, (14, 1.0)], others)
    )
    direction = (with_it - without).numpy() / float((with_it - without).norm())

    def seen(gradient: torch.Tensor, seed: int) -> np.ndarray:
        keys = [NoiseKey(derive_key(simulated_secret(seed, 0), trial)) for trial in range(trials)]
        draws = [release_gradient(gradient, config, parties=2, sharing=2, key=each) for each in keys]
        return np.stack(draws) @ direction / unit(config)

    there, not_there = seen(with_it, 7), seen(without, 8)
    half = trials // 2
    best = -math.inf
    for threshold in np.quantile(not_there[:half], [0.5, 0.8, 0.9, 0.95, 0.99]):
        hit, false = (there[half:] > threshold).mean(), (not_there[half:] > threshold).mean()
        slack = math.sqrt(math.log(2 * 5 * 100) / (2 * half))  # Hoeffding, for both rates and five thresholds
        if hit - slack > 1e-6:
            best = max(best, math.log((hit - slack - 1e-6) / (false + slack)))
    return best


def test_an_attack_on_a_canary_stays_below_the_guarantee() -> None:
    """The empirical lower bound must not exceed what is promised; without the noise that is promised, it does."""
    promised = rating_epsilon(private(noise_multiplier=2.0), rounds=1, validations=0)
    assert attacked(2.0, 6000) < promised
    assert attacked(0.05, 6000) > 1.0 > attacked(2.0, 6000)


# -- a training ------------------------------------------------------------------------------------------------------------


def test_a_private_training_tells_no_counts_and_sends_integers(small_parties: list[vf.PartyData]) -> None:
    runtime = federation(small_parties, private(epochs=3))
    hellos = [candidate.hello() for candidate in runtime.candidates.values()]
    assert {hello.ratings for hello in hellos if isinstance(hello, Hello)} == {0}
    runtime = federation(small_parties, private(epochs=3))
    seen: list[RoundReply] = []
    receive = runtime.coordinator.receive
    runtime.coordinator.receive = lambda name, reply: (seen.append(reply), receive(name, reply))[1]  # type: ignore[method-assign]
    runtime.round()
    assert {reply.gradient.dtype for reply in seen if reply.gradient is not None} == {
        np.dtype(np.uint32)
    }  # residues
    assert all(reply.neighbourhoods is None for reply in seen)


def test_embeddings_stay_within_their_bound(small_parties: list[vf.PartyData]) -> None:
    config = private(epochs=5, noise_multiplier=0.5)
    run = vf.train(small_parties, config)
    assert config.model.bound is not None
    assert all(float(m.embeddings.norm(dim=1).max()) <= config.model.bound * (1 + 1e-5) for m in run.models)
    users = run.public[: small_parties[0].ratings.n_users * config.model.dim].view(-1, config.model.dim)
    assert float(users.norm(dim=1).max()) <= config.model.bound * (1 + 1e-5)


def test_a_private_run_repeats_resumes_and_reports(small_parties: list[vf.PartyData], tmp_path: Path) -> None:
    config = private(epochs=6, evaluate_every=2)
    whole = vf.train(small_parties, config)
    rounds = iter(range(100))
    with pytest.raises(vf.VerFedGNNError, match="stopped"):
        vf.train(small_parties, config, out=tmp_path / "run", stop=lambda: next(rounds) >= 2)
    same(whole, vf.resume(tmp_path / "run"))
    privacy = whole.metrics["privacy"]
    assert privacy["gradients"]["composed"]["epsilon"] == rating_epsilon(config, rounds=6, validations=3)
    assert "every single rating" in privacy["gradients"]["guarantee"]
    assert privacy["validation"]["mechanism"] == "skellam"


def test_noise_that_all_parties_can_remove_promises_nothing(
    small_parties: list[vf.PartyData], tmp_path: Path, command: Callable[..., tuple[int, str, str]]
) -> None:
    """With `unprotected = ["noise"]` there is no epsilon in metrics.json, in the terminal or in the report."""
    folder = tmp_path / "run"
    vf.train(small_parties, private(epochs=2, evaluate_every=2, unprotected=["noise"]), out=folder)
    privacy = json.loads((folder / "metrics.json").read_text())["privacy"]
    assert privacy["gradients"]["guarantee"].startswith("none: all parties agreed")
    assert privacy["validation"]["guarantee"].startswith("none: all parties agreed")
    for words in (
        json.dumps(privacy),
        *command("evaluate", folder)[1:],
        *command("runs", tmp_path, "--json")[2:],
    ):
        assert "epsilon" not in words
    assert json.loads(command("runs", tmp_path, "--json")[1])[0]["epsilon"] is None
    assert command("report", folder)[0] == 0
    report = page_text((folder / "report" / "report.html").read_text())
    assert "No release has a guarantee of differential privacy; all parties agreed" in report
    assert "epsilon" not in report
    ledger = ReleaseLedger(private(unprotected=["noise"]))
    ledger.release(1, [0, 1], {GRADIENT: np.zeros(3, np.int32)})
    assert ledger.epsilon is None


def test_noised_validation_is_bounded_by_the_scale() -> None:
    config = private(noise_multiplier=1e-9)
    error, count = release_validation(torch.tensor([1.0, 4.0, 1e9]), (1.0, 5.0), config, key(0))
    assert (error, count) == (pytest.approx(21.0), 3)
