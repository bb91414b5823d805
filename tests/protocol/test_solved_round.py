"""Rounds of a model whose items are solved at home: what leaves a party, and the public step."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import verfedgnn as vf
from helpers import federation
from verfedgnn.core.errors import Interrupted
from verfedgnn.data.synthetic import synthetic_ratings
from verfedgnn.privacy.masking import GRADIENT, add_masks
from verfedgnn.privacy.protections import LARGEST_ROUNDED, protection_of
from verfedgnn.protocol import solved_round
from verfedgnn.protocol.solved_round import is_first
from verfedgnn.training.local_runtime import LocalRuntime

SMALL = {"dim": 6, "raters": 4, "lists": False, "gate": False, "patience": 0}


def solved(**values: object) -> vf.Config:
    return vf.Config.preset("best").with_values(SMALL | {"epochs": 12} | values)


@given(st.lists(st.integers(-(201**4) // 2 + 1, 201**4 // 2), min_size=1, max_size=20), st.integers(1, 100))
@settings(max_examples=50, derandomize=True, deadline=None)
def test_limbs_add_up(values: list[int], parties: int) -> None:
    whole = torch.tensor(values)
    limbs = solved_round._to_limbs(whole, 4, solved_round.LIMB_BASE)
    assert limbs.abs().max() <= LARGEST_ROUNDED[0]
    assert torch.equal(solved_round._from_limbs(limbs * parties, solved_round.LIMB_BASE), whole * parties)


def test_no_sum_of_rounded_values_overflows_and_none_takes_more_bits_than_it_needs() -> None:
    for parties in range(1, 1000):
        protection = protection_of(solved(), parties)
        largest, bits = protection.largest, protection.bits
        assert LARGEST_ROUNDED[0] <= largest <= LARGEST_ROUNDED[1]
        assert 2 ** (bits - 2) <= parties * largest < 2 ** (bits - 1)
        for extreme in (largest, -largest):
            release = np.full(3, extreme, protection.sum_type)
            total = protection.add_up([add_masks(release, [], GRADIENT, bits)] * parties)
            assert total.tolist() == [extreme * parties] * 3
    saved = {parties: protection_of(solved(), parties).bits for parties in (3, 5, 10)}
    assert saved == {3: 10, 5: 10, 10: 11}


def unprotected(**values: object) -> vf.Config:
    return solved(masking=False, **{"gradients.mechanism": "none"}, **values)


def test_rounding_changes_little(small_parties: list[vf.PartyData]) -> None:
    """Sums in 8 bits end where exact ones do, up to a fraction of a per cent."""
    exact = vf.train(small_parties, unprotected())
    rounded = vf.train(small_parties, solved())
    best = [min(row["valid_rmse"] for row in run.history) for run in (exact, rounded)]
    assert best[1] == pytest.approx(best[0], rel=0.005)


def test_training_learns_in_few_rounds(small_parties: list[vf.PartyData]) -> None:
    run = vf.train(small_parties, solved())
    errors = [row["valid_rmse"] for row in run.history]
    assert min(errors) < 0.97 * errors[0]


@pytest.mark.parametrize(
    ("users", "items", "ratings", "parties"),
    [(150, 90, 6000, 3), (60, 12, 500, 2), (300, 400, 3000, 4), (40, 30, 900, 10)],
    ids=["few items", "two parties with six items", "sparse", "ten parties with three items"],
)
def test_no_shape_of_data_makes_a_training_diverge(
    users: int, items: int, ratings: int, parties: int
) -> None:
    """A party with few items hides the directions of its sums; steps must not become too long for it."""
    table = synthetic_ratings(users=users, items=items, ratings=ratings, seed=3)
    run = vf.train(
        vf.split_items(table, parties=parties, seed=3),
        vf.Config.preset("best", raters=16, lists=False, gate=False, patience=0).with_values(
            {"split.kind": "rating", "split.fractions": [0.6, 0.2, 0.2]}
        ),
    )
    errors = [row["valid_rmse"] for row in run.history]
    assert max(errors) <= 1.02 * errors[0]
    assert errors[-1] <= 1.05 * min(errors)


def releases(runtime: LocalRuntime) -> list[np.ndarray]:
    """Return what each party releases in the next round, before masks."""
    starts = runtime.coordinator.open()
    found = []
    for name, start in starts.items():
        sent = runtime.parties[name].answer_round(runtime.carry("down", name, start))
        reply = runtime.carry("up", name, sent)
        assert reply.gradient is not None
        found.append(reply.gradient)
        runtime.coordinator.receive(name, reply)
    runtime.coordinator.close()
    return found


def test_a_release_is_integers_of_eight_bits(small_parties: list[vf.PartyData]) -> None:
    runtime = federation(small_parties, solved(masking=False))
    for round in range(1, 4):
        first = is_first(runtime.coordinator.model, runtime.coordinator.replica.parameters)
        assert first == (round == 1)
        for release in releases(runtime):
            assert release.dtype == np.int16
            assert np.abs(release).max() <= runtime.coordinator.replica.protection.largest


def test_the_first_round_shares_exact_counts_and_means(small_parties: list[vf.PartyData]) -> None:
    runtime = federation(small_parties, solved(masking=False, **{"gradients.noise": 0.0}))
    runtime.round()
    model, replica = runtime.coordinator.model, runtime.coordinator.replica
    views = model.views(replica.parameters)
    counts = torch.zeros(model.users)
    left = torch.zeros(model.users)
    for party in runtime.parties.values():
        train = party.setup.targets.train
        user, item = train.user.long(), train.item.long()
        degree = torch.bincount(item, minlength=party.data.items)
        means = torch.zeros(party.data.items).index_add_(0, item, train.rating) / (degree + 5)
        counts.index_add_(0, user, torch.ones(len(user)))
        left.index_add_(0, user, train.rating - means[item])
    assert torch.equal(views["totals"][:, 0], counts)
    torch.testing.assert_close(views["totals"][:, 1], left, rtol=0, atol=5e-3)
    torch.testing.assert_close(views["users"][:, -1], left / (counts + 5), rtol=0, atol=2e-3)
    assert not views["users"][counts == 0].any(), "users without ratings start at 0"


def test_rounded_sums_have_the_right_mean(small_parties: list[vf.PartyData]) -> None:
    """Rounding at random adds no bias: the mean of 400 releases is within 5.5 standard errors in all of about 10,000 places
    (chance of failure below 1e-3 a place and 1e-6 in all with the seed fixed)."""
    runtime = federation(small_parties, solved(masking=False))
    runtime.round()
    runtime.round()
    party = next(iter(runtime.parties.values()))
    model, parameters = party.model, party.replica.parameters
    rng = np.random.default_rng(0)
    columns = model.solved.released if model.solved else 0
    gradient = torch.from_numpy(rng.normal(0, 3, (model.users, columns)).astype(np.float32))
    shapes = model.solved.sum_shapes if model.solved else {}
    step = solved_round.SolvedStep(
        gradient, {name: torch.zeros(shape) for name, shape in shapes.items()}, gradient, gradient, {}
    )

    class Uniform:
        def uniform(self, shape: tuple[int, ...]) -> np.ndarray:
            return rng.random(shape)

    largest = party.replica.protection.largest
    protection: Any = SimpleNamespace(largest=largest, noise=0.0, sum_type=np.dtype(np.int16))
    key: Any = SimpleNamespace(stream=lambda _: Uniform())
    assert party.replica.solved is not None
    encode = party.replica.solved.encode_release
    draws = [encode(parameters, step, protection, key).astype(float) for _ in range(400)]
    views = model.views(parameters)
    units = model.solved.shared(views["sums"])["units"] if model.solved else torch.zeros(0)
    wanted = gradient / ((views["totals"][:, :1] + 1).sqrt() * units)
    wanted = wanted.clamp(-largest, largest).numpy()
    found = np.mean(draws, 0)[: model.users * columns]
    width = model.shapes["users"][1]
    users = found[: model.users * width].reshape(model.users, width)
    inside = np.abs(wanted[:, :width]) < largest - 1
    assert inside.mean() > 0.5
    assert np.abs(users - wanted[:, :width])[inside].max() < 5.5 * 0.5 / 20


def test_two_parties_blur_gradients_and_most_those_of_the_second_model(
    small_parties: list[vf.PartyData],
) -> None:
    """Releases of a gradient of 0 have the noise's standard deviation; with some 200 x 20 draws it is met to a tenth."""
    runtime = federation(small_parties, solved(masking=False))
    runtime.round()
    runtime.round()
    party = next(iter(runtime.parties.values()))
    model, parameters = party.model, party.replica.parameters
    assert model.solved is not None
    assert party.replica.solved is not None
    nothing = torch.zeros((model.users, model.solved.released))
    sums = {name: torch.zeros(shape) for name, shape in model.solved.sum_shapes.items()}
    step = solved_round.SolvedStep(nothing, sums, nothing, nothing, {})
    rng = np.random.default_rng(0)
    uniform: Any = SimpleNamespace(uniform=rng.random)
    protection: Any = SimpleNamespace(
        largest=127, noise=0.5, sum_type=np.dtype(np.int16), rounding=lambda key: uniform
    )
    key: Any = SimpleNamespace(stream=lambda _: uniform)
    draws = [party.replica.solved.encode_release(parameters, step, protection, key) for _ in range(20)]
    released = [model.views(torch.from_numpy(draw.astype(np.float32))) for draw in draws]
    unit = solved_round.STEPS_PER_DEVIATION * protection.noise
    for name, wanted in (("users", unit), ("raters", unit * solved_round.RATERS_NOISE)):
        spread = torch.stack([tables[name] for tables in released]).std()
        assert float(spread) == pytest.approx(wanted, rel=0.1)


@pytest.mark.parametrize(
    ("ratings", "parties", "raters", "noise", "in_lists"),
    [
        (10_000, 2, 16, 0.25, 0.25),
        (10_000, 3, 64, 0.1, 0.0),
        (1_000, 2, 0, 0.25, 0.25),
        (1_000, 3, 0, 0.0, 0.0),
    ],
)
def test_two_parties_and_a_second_model_need_noise_where_none_is_set(
    ratings: int, parties: int, raters: int, noise: float, in_lists: float
) -> None:
    config = vf.Config.preset("best").for_data(100, ratings, parties)
    assert (config.model.raters, config.noise_of(parties)) == (raters, noise)
    assert protection_of(config, parties).noise == noise
    assert config.for_lists().noise_of(parties) == in_lists
    chosen = vf.Config.preset("best").with_values({"raters": 8, "gradients.noise": 0.5})
    assert chosen.for_data(100, ratings, parties).noise_of(parties) == 0.5
    assert vf.Config.preset("paper").noise_of(2) == 0.0


def test_replicas_stay_equal_and_updates_are_integers(small_parties: list[vf.PartyData]) -> None:
    runtime = federation(small_parties, solved())
    for _ in range(4):
        runtime.round()
    assert runtime.coordinator.updates[-1].total.dtype == np.int16
    digest = runtime.coordinator.replica.digest()
    update = runtime.coordinator.open()
    for name, start in update.items():
        runtime.parties[name].answer_round(runtime.carry("down", name, start))
    assert {party.replica.digest() for party in runtime.parties.values()} == {digest}


def test_an_exact_federated_step_is_the_step_of_the_summed_gradient(
    small_parties: list[vf.PartyData],
) -> None:
    """Without rounding, adding up what parties send and stepping equals stepping with the sum of their gradients, to 1e-5."""
    runtime = federation(small_parties, unprotected())
    for _ in range(3):
        runtime.round()
    replica = runtime.coordinator.replica
    before = replica.parameters.clone(), replica.accumulator.clone()
    sent = releases(runtime)
    total = torch.from_numpy(np.sum(np.stack(sent).astype(np.float64), 0).astype(np.float32))
    assert replica.solved is not None
    update = replica.solved.compute_update(*before, total)
    torch.testing.assert_close(torch.from_numpy(update), replica.parameters, rtol=1e-5, atol=1e-5)


def test_a_stopped_training_resumes_to_the_same_bits(
    small_parties: list[vf.PartyData], tmp_path: Path
) -> None:
    config = solved(epochs=6)
    whole = vf.train(small_parties, config)
    rounds = iter(range(100))
    with pytest.raises(Interrupted):
        vf.train(small_parties, config, out=tmp_path / "run", stop=lambda: next(rounds) >= 2)
    again = vf.resume(tmp_path / "run")
    assert torch.equal(again.public, whole.public)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"gradients.mechanism": "ternary"}, "belong together"),
        ({"batch": 100}, "every rating and every party"),
        ({"participation": 0.5}, "every rating and every party"),
        ({"exchange": 5}, "no neighbourhoods to exchange"),
        ({"dim": 5}, "at least 6"),
        ({"biases": False}, "no raters"),
    ],
)
def test_settings_that_do_not_fit_are_refused(values: dict[str, object], complaint: str) -> None:
    with pytest.raises(vf.ConfigError, match=complaint):
        solved(**values)
