"""The second model of `model.raters`: its equation, what it reads, and the federation against the pooled model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from test_message_model import USERS, federation, open_config
from torch import Tensor

from verfedgnn import Config, ConfigError, train
from verfedgnn.core.graph import Graph, build_graph, restrict_graph, stack_graphs
from verfedgnn.core.pairs import Pairs
from verfedgnn.data import split_items, synthetic_ratings
from verfedgnn.gnn.model import Model
from verfedgnn.protocol.party.batches import choose_reads
from verfedgnn.protocol.round.forward_backward import PassInputs, PassResult, compute
from verfedgnn.protocol.round.loss import Batch
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.training.party_gate import split_models

CONFIG = Config.preset("best", dim=3, **{"model.raters": 4})
ROWS = ("rater_users", "rater_values", "rater_marks", "rater_bias")


def rated(seed: int, users: int = 7, items: int = 5) -> tuple[Graph, Pairs]:
    """Draw a party's ratings, with their values on the graph."""
    rng = np.random.default_rng(seed)
    user, item = np.nonzero(rng.random((users, items)) < 0.6)
    rating = rng.normal(size=len(user)).astype(np.float32)
    graph = build_graph(user, item, users=users, items=items, values=rating)
    return graph, Pairs(torch.from_numpy(user), torch.from_numpy(item), torch.from_numpy(rating))


def public_of(model: Model) -> Tensor:
    """Draw public parameters, none of them 0."""
    return torch.from_numpy(np.random.default_rng(5).normal(0, 0.5, model.size).astype(np.float32))


def private_of(model: Model, items: int, seed: int) -> dict[str, Tensor]:
    rng = np.random.default_rng(seed)
    return {
        name: torch.from_numpy(rng.normal(0, 0.5, shape).astype(np.float32))
        for name, shape in model.private_shapes(items).items()
    }


def test_an_items_vector_is_computed_from_its_raters() -> None:
    graph, pairs = rated(0)
    model = Model(CONFIG.model, 7)
    public = {name: value.unsqueeze(0) for name, value in model.views(public_of(model)).items()}
    private = {name: value.unsqueeze(0) for name, value in private_of(model, 5, 1).items()}
    ((users, items),) = model.propagate(public, private, graph, None).raters
    predicted = (users @ items.transpose(1, 2))[0]
    z, y, w = (public[name][0] for name in ("rater_values", "rater_marks", "rater_users"))
    for v in range(5):
        raters = pairs.user[pairs.item == v]
        read = pairs.rating[pairs.item == v].unsqueeze(1) * z[raters] + y[raters]
        vector = torch.tanh(public["rater_offset"][0] + read.sum(0) / np.sqrt(len(raters)))
        expected = w @ vector + public["rater_bias"][0, :, 0] + private["rater_item_bias"][0, v]
        torch.testing.assert_close(predicted[:, v], expected)


def pass_of(model: Model, graph: Graph, batch: Batch, private: dict[str, Tensor]) -> PassResult:
    return compute(model, graph, public_of(model), None, [PassInputs(private, None, batch)], CONFIG.training)[
        0
    ]


def test_a_rating_is_not_predicted_from_itself() -> None:
    """The gradient does not depend on the value of a rating that is predicted, as far as items read it."""
    graph, pairs = rated(0)
    assert graph.values is not None
    model = Model(CONFIG.model, 7)
    private = private_of(model, 5, 1)
    read = torch.ones(1, len(pairs))
    read[0, ::3] = 0
    batch = Batch(pairs, 7, 5, edges=True, read=read)
    other = replace(graph, values=torch.where(read[0] > 0, graph.values, graph.values + 1))
    one, two = (pass_of(model, each, batch, private).public_gradient for each in (graph, other))
    assert one is not None
    assert two is not None
    assert torch.equal(one, two)
    everything_read = pass_of(model, graph, replace(batch, read=torch.ones(1, len(pairs))), private)
    assert everything_read.public_gradient is not None
    gradients = model.views(everything_read.public_gradient)
    assert not gradients["rater_values"].any()  # nothing is left to predict


def test_gradients_of_parties_add_up_to_the_pooled_gradient() -> None:
    model = Model(CONFIG.model, 7)
    parts = [rated(seed) for seed in (1, 2)]
    own = [private_of(model, 5, seed) for seed in (3, 4)]
    reads = [(torch.arange(len(pairs)) % 4 > 0).float().unsqueeze(0) for _, pairs in parts]
    batches = [
        Batch(pairs, 7, 5, edges=True, read=read) for (_, pairs), read in zip(parts, reads, strict=True)
    ]
    inputs = [PassInputs(private, None, batch) for private, batch in zip(own, batches, strict=True)]
    stacked = stack_graphs([graph for graph, _ in parts])
    together = compute(model, stacked, public_of(model), None, inputs, CONFIG.training)
    user = torch.cat([pairs.user for _, pairs in parts])
    item = torch.cat([pairs.item + 5 * p for p, (_, pairs) in enumerate(parts)])
    rating = torch.cat([pairs.rating for _, pairs in parts])
    order = torch.argsort(user * 10 + item)
    pooled_pairs = Pairs(user[order], item[order], rating[order])
    graph = build_graph(user.numpy(), item.numpy(), users=7, items=10, values=rating.numpy())
    batch = Batch(pooled_pairs, 7, 10, edges=True, read=torch.cat(reads, 1)[:, order])
    joined = {name: torch.cat([each[name] for each in own]) for name in own[0]}
    whole = pass_of(model, graph, batch, joined)
    assert whole.public_gradient is not None
    expected = model.views(whole.public_gradient)
    found = [model.views(result.public_gradient) for result in together if result.public_gradient is not None]
    for name in (*ROWS, "rater_offset"):
        torch.testing.assert_close(sum(each[name] for each in found), expected[name], atol=1e-4, rtol=1e-4)
    for (graph, _), private, batch, result in zip(parts, own, batches, together, strict=True):
        alone = pass_of(model, graph, batch, private)  # a stack computes what each party computes
        assert alone.public_gradient is not None
        torch.testing.assert_close(alone.public_gradient, result.public_gradient, atol=1e-4, rtol=1e-4)


@given(
    drawn=arrays(np.float32, st.integers(1, 40), elements=st.floats(0, 0.75, width=32)),
    share=st.floats(0.1, 0.9),
    reads=st.integers(1, 12),
)
def test_every_rating_is_read_about_equally_often(
    drawn: NDArray[np.float32], share: float, reads: int
) -> None:
    chosen = choose_reads(drawn, share, reads)
    assert chosen.shape == (reads, len(drawn))
    assert np.array_equal(chosen[0], drawn < share)
    often = chosen.sum(0)
    assert (np.abs(often - share * reads) < 1 + 1e-4).all()


def test_the_gradient_of_several_reads_is_their_average() -> None:
    graph, pairs = rated(0)
    model = Model(CONFIG.model, 7)
    private = private_of(model, 5, 1)
    reads = torch.from_numpy(
        choose_reads(np.random.default_rng(2).random(len(pairs), np.float32), 0.7, 3)
    ).float()
    batch = Batch(pairs, 7, 5, edges=True, read=reads)
    several = pass_of(model, graph, batch, private)
    single = [pass_of(model, graph, replace(batch, read=read.unsqueeze(0)), private) for read in reads]
    assert several.public_gradient is not None
    assert several.private_gradients is not None
    gradients = torch.stack([each.public_gradient for each in single if each.public_gradient is not None])
    assert not torch.allclose(gradients[0], gradients[1])
    torch.testing.assert_close(several.public_gradient, gradients.mean(0))
    for name, found in several.private_gradients.items():
        apart = [each.private_gradients[name] for each in single if each.private_gradients is not None]
        torch.testing.assert_close(found, torch.stack(apart).mean(0))


def test_more_reads_leave_less_noise_in_a_gradient() -> None:
    """The variance over rounds is less than that of as many independent reads, a quarter: numbers that move cover all ratings."""
    gradients = {}
    for reads in (1, 4):
        config = open_config("gcn", **{"model.raters": 4, "backward": False, "reads": reads})
        _, parties = federation(config)
        party = parties[0]
        model = party.model
        private = party.progress.private.parameters
        drawn = public_of(model)
        found = [
            compute(
                model,
                party.graph,
                drawn,
                None,
                [PassInputs(private, None, party.batch(round))],
                config.training,
            )[0].public_gradient
            for round in range(1, 61)
        ]
        gradients[reads] = torch.stack(
            [model.views(each)["rater_users"] for each in found if each is not None]
        )
    noise = {reads: float(each.var(0).mean()) for reads, each in gradients.items()}
    assert noise[4] < 0.3 * noise[1]


def test_a_graph_of_some_users_keeps_their_values() -> None:
    graph, pairs = rated(0)
    part = restrict_graph(graph, torch.tensor([1, 4]))
    assert part.values is not None
    assert torch.equal(part.values, pairs.rating[(pairs.user == 1) | (pairs.user == 4)])


def test_a_round_serves_the_average_of_both_models_and_reads_other_ratings_each_time() -> None:
    config = open_config("ggnn", **{"model.raters": 4, "backward": False})
    runtime, parties = federation(config)
    first, second = (parties[0].batch(round).read for round in (1, 2))
    assert first is not None
    assert second is not None
    assert not torch.equal(first, second)
    assert torch.equal(first, parties[0].batch(1).read)
    runtime.round()
    for party in parties:
        assert party.progress.evaluated is not None
        served = party.progress.evaluated[1]
        whole = PartyModel(served["users"], served["items"], served["embeddings"])
        halves = split_models(whole, config)
        assert set(halves) == {"federated", "federated raters"}
        scores = [each.score(torch.arange(USERS)) for each in halves.values()]
        torch.testing.assert_close(sum(scores) / 2, whole.score(torch.arange(USERS)))


@pytest.mark.parametrize("reads", [1, 3])
def test_parties_one_by_one_and_stacked_train_the_same_model(reads: int) -> None:
    table = synthetic_ratings(users=40, items=24, ratings=500, seed=1)
    parties = split_items(table, parties=3, seed=0)
    config = CONFIG.with_values(
        {"epochs": 4, "lists": False, "gate": False, "evaluate_every": 2, "reads": reads}
    )
    stacked, single = (train(parties, config, stack=stack) for stack in (True, False))
    assert stacked.metrics["test"]["rmse"] == pytest.approx(single.metrics["test"]["rmse"], abs=1e-3)


@pytest.mark.parametrize(
    "setting", [{"batch": 100}, {"user_blocks": 2}, {"threshold": 4.0}, {"biases": False}]
)
def test_the_second_model_needs_every_rating_in_every_round(setting: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"model\.raters needs every rating"):
        CONFIG.with_values(setting)
