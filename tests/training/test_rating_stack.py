"""The gate of ratings: which weights a party chooses on its validation part."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verfedgnn.core.pairs import Pairs
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.training.stacks import Mixture, stack_ratings

USERS = 40
ITEMS = 10
NAMES = ("means", "federated means", "alone", "federated")
NEW = torch.arange(USERS) % 4 == 0
"""Users without training ratings."""
COUNTS = torch.where(NEW, 0, 7)


def random_models(seed: int, count: int = 4) -> dict[str, PartyModel]:
    rng = torch.Generator().manual_seed(seed)
    return {
        name: PartyModel(
            torch.randn(USERS, 3, generator=rng),
            torch.randn(ITEMS, 3, generator=rng),
            torch.zeros(ITEMS, 3),
        )
        for name in NAMES[:count]
    }


def every_pair(rating: torch.Tensor | None = None) -> Pairs:
    user, item = torch.arange(USERS * ITEMS) // ITEMS, torch.arange(USERS * ITEMS) % ITEMS
    return Pairs(user, item, torch.zeros(USERS * ITEMS) if rating is None else rating.float())


def many_times(pairs: Pairs) -> Pairs:
    """Return the pairs twenty times, as evidence that outweighs the prior of newcomers."""
    return pairs.take(torch.arange(len(pairs)).repeat(20))


def of_known(pairs: Pairs) -> Pairs:
    return pairs.take(~NEW[pairs.user])


def squared_error(model: PartyModel, pairs: Pairs) -> float:
    return float((model.predict(pairs) - pairs.rating).square().sum())


@given(seed=st.integers(0, 10_000), count=st.integers(1, 4), size=st.integers(1, 60))
def test_a_mixture_is_never_worse_on_the_validation_part_than_equal_weights(
    seed: int, count: int, size: int
) -> None:
    """Equal weights are the prior and cost no penalty, so they bound the error for users whom the party knows."""
    models = random_models(seed, count)
    rng = torch.Generator().manual_seed(seed + 1)
    valid = of_known(every_pair(torch.randn(USERS * ITEMS, generator=rng)))
    valid = valid.take(torch.randperm(len(valid), generator=rng)[:size])
    stacked = stack_ratings(models, valid, COUNTS)
    same = [1 / count] * count
    equal = Mixture.of(models, same, same, COUNTS).model
    assert squared_error(stacked.model, valid) <= squared_error(equal, valid) * (1 + 1e-5) + 1e-5
    assert all(weight >= 0 for name, weight in stacked.known.items() if name != "means")
    assert sum(stacked.known.values()) == pytest.approx(1)
    assert sum(stacked.newcomers.values()) == pytest.approx(1)


@pytest.mark.parametrize("truth", NAMES)
def test_the_model_that_is_the_truth_has_all_the_weight(truth: str) -> None:
    """The prior counts as some ten ratings of 300, and the noise is a tenth of a star."""
    models = random_models(7)
    noise = 0.1 * torch.randn(USERS * ITEMS, generator=torch.Generator().manual_seed(1))
    valid = of_known(every_pair(models[truth].predict(every_pair()) + noise))
    stacked = stack_ratings(models, valid, COUNTS)
    assert stacked.known == pytest.approx({name: float(name == truth) for name in NAMES}, abs=0.1)


@given(seed=st.integers(0, 10_000), weight=st.floats(0.0, 1.0))
def test_a_mixture_that_is_the_truth_is_found(seed: int, weight: float) -> None:
    models = random_models(seed)
    predicted = {name: model.predict(every_pair()) for name, model in models.items()}
    valid = of_known(every_pair(weight * predicted["federated"] + (1 - weight) * predicted["alone"]))
    found = stack_ratings(models, valid, COUNTS).known
    assert found["federated"] == pytest.approx(weight, abs=0.15)
    assert found["alone"] == pytest.approx(1 - weight, abs=0.15)


def test_a_small_validation_part_does_not_choose() -> None:
    """One rating that another model explains perfectly counts as one against ten: w = (1 + 10/2) / (1 + 10)."""
    models = random_models(3)
    one = of_known(every_pair(models["alone"].predict(every_pair()))).take(slice(1))
    known = stack_ratings({name: models[name] for name in ("means", "alone")}, one, COUNTS).known
    assert known["alone"] == pytest.approx(6 / 11, abs=1e-6)


def test_newcomers_have_the_federated_models_where_the_validation_part_has_none() -> None:
    """The weight of the model alone goes to the federated models, in proportion to theirs."""
    models = random_models(4)
    valid = of_known(every_pair(models["federated"].predict(every_pair())))
    stacked = stack_ratings(models, valid, COUNTS)
    known = stacked.known
    new = stacked.newcomers
    assert new["alone"] == 0
    assert sum(new.values()) == pytest.approx(1)
    assert new["federated"] > known["federated"]
    ratio = known["federated"] / known["federated means"]
    assert new["federated"] / new["federated means"] == pytest.approx(ratio)
    assert new["means"] == pytest.approx(max(known["means"], 0))


def test_a_party_alone_has_item_means_for_newcomers() -> None:
    models = random_models(4)
    own = {name: models[name] for name in ("means", "alone")}
    valid = of_known(every_pair(models["alone"].predict(every_pair())))
    assert stack_ratings(own, valid, COUNTS).newcomers == {"means": 1.0, "alone": 0.0}


def test_newcomers_have_weights_of_their_own_where_they_differ() -> None:
    models = random_models(5)
    predicted = {name: model.predict(every_pair()) for name, model in models.items()}
    rating = torch.where(NEW.repeat_interleave(ITEMS), predicted["federated means"], predicted["alone"])
    stacked = stack_ratings(models, many_times(every_pair(rating)), COUNTS)
    assert stacked.known["alone"] > 0.9
    assert stacked.newcomers["federated means"] > 0.7
    truth = every_pair(rating)
    assert squared_error(stacked.model, truth) < 0.1 * squared_error(models["means"], truth)


def test_without_known_users_in_the_validation_part_all_models_count_alike() -> None:
    models = random_models(6)
    every = many_times(every_pair(models["alone"].predict(every_pair())))
    stacked = stack_ratings(models, every.take(NEW[every.user]), COUNTS)
    assert stacked.known == dict.fromkeys(NAMES, 0.25)
    assert stacked.newcomers["alone"] > 0.7


@given(seed=st.integers(0, 1000), weights=st.lists(st.floats(0, 2), min_size=8, max_size=8))
def test_mixed_models_predict_the_weighted_sum(seed: int, weights: list[float]) -> None:
    models = random_models(seed)
    weights[0] += 0.1
    known, newcomers = weights[:4], weights[4:]
    mixed = Mixture.of(models, known, newcomers, COUNTS).model
    predicted = np.stack([model.predict(every_pair()).numpy() for model in models.values()])
    usual, other = (np.tensordot(np.array(each), predicted, 1) for each in (known, newcomers))
    new = NEW[every_pair().user].numpy()
    np.testing.assert_allclose(
        mixed.predict(every_pair()).numpy(), np.where(new, other, usual), rtol=1e-4, atol=1e-4
    )
