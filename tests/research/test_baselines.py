"""The methods of the comparison: what they declare, what they send, and the mathematics that is theirs alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import verfedgnn as vf
from helpers import federation, make_ratings, means_errors
from verfedgnn.core.graph import build_graph
from verfedgnn.core.key_stream import KeyStream
from verfedgnn.core.pairs import Pairs, PartyInput
from verfedgnn.core.random_streams import simulated_secret
from verfedgnn.data import NEWCOMER, TRAIN, VALID, PartyData
from verfedgnn.plugins import load_gnn
from verfedgnn.protocol.messages import RoundReply
from verfedgnn.runs.metrics_file import evaluate
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.prepared_data import prepare, split_ratings
from verfedgnn.training.local_runtime import local_federation
from verfedgnn.training.own_models import OwnRatings
from verfedgnn.training.train import train
from verfedgnn_research.baselines import METHODS, Where, in_all, method
from verfedgnn_research.baselines.central_gnn import cut, pooled
from verfedgnn_research.baselines.descent_methods import (
    DescentMethod,
    ImplicitFactors,
    ItemAutoencoder,
    LightGraph,
)
from verfedgnn_research.baselines.fedpergnn import PseudoParty, like
from verfedgnn_research.baselines.fedsage import complete
from verfedgnn_research.baselines.pooled_parties import find_pooled_items, pool_parties, prepare_judged
from verfedgnn_research.baselines.simple_methods import (
    EASE_OPTIONS,
    FACTORS,
    NEIGHBOURS,
    RIDGES,
    SHRINKAGE,
    ItemKNN,
    SimpleMethod,
    map_users,
    mix_lists,
)
from verfedgnn_research.baselines.solo_training import solo_config

CPU = torch.device("cpu")
SHORT = {"training.batch": 400, "training.epochs": 4}


def configured(name: str, gnn: str = "gcn", **values: object) -> vf.Config:
    chosen = method(name)
    short = SHORT
    if name in ("private", "best", "best-gated"):
        short = {"training.epochs": 24 if name == "private" else 4}
    return chosen.configure(vf.Config.preset(chosen.preset, model=gnn)).with_values({**short, **values})  # type: ignore[arg-type]


SIMPLE = [name for name, found in METHODS.items() if isinstance(found, SimpleMethod)]


@pytest.mark.parametrize("name", [name for name in METHODS if name not in SIMPLE])
def test_declarations_are_what_the_settings_say(name: str) -> None:
    chosen = method(name)
    config = configured(name)
    declared = chosen.declares
    local = declared.storage == "local" and name != "alone"
    if local:
        assert declared.gradient_protection == (config.gradients.mechanism != "none")
        assert declared.cross_graph == (config.exchange != "off")
    else:
        assert config.exchange == "off"
        assert not declared.cross_graph
    if name not in ("bias", "best", "private"):
        assert declared.high_order == (config.model.form == "propagation")


def test_unknown_methods_are_named() -> None:
    assert in_all("all")[: len(METHODS)] == list(METHODS)
    assert in_all("mf, fedsage,mf") == ["mf", "fedsage"]
    with pytest.raises(
        vf.ConfigError, match="no method 'sage'; choose from: popularity, popularity-alone, bias"
    ):
        in_all("sage")


# -- simple methods -------------------------------------------------------------------------------------------------------


def test_the_cosine_of_itemknn_is_solved_by_hand() -> None:
    """Three users have items 0 and 1, one of them item 2, too: cos(0, 1) = 1, cos(0, 2) = 1/sqrt(3)."""
    ratings = make_ratings(
        np.array(list("aaabbccc")), np.array(list("01201012")), np.full(8, 5.0, np.float32)
    )
    parts = np.array([TRAIN] * 7 + [VALID], np.int8)
    (table,) = prepare([PartyData("one", ratings)], vf.Config.preset("best"), CPU, [parts])
    (scores,) = [ItemKNN().fit(table, vf.Config.preset("best"), Where(CPU)).lists.score(torch.tensor([1]))]  # type: ignore[union-attr]
    expected = torch.tensor([1.0, 1.0, 2 / 3**0.5])
    torch.testing.assert_close(scores[0], expected)


def test_a_pooled_method_sees_what_users_have_elsewhere(small_parties: list[vf.PartyData]) -> None:
    """Cut to a party's items, a pooled model gives the scores of the whole one."""
    config = METHODS["ease"].configure(vf.Config.preset("best"))
    trained = METHODS["ease"].train(small_parties, config, Where(CPU))
    table = pool_parties(small_parties)
    parts = [np.concatenate([each.parts for each in prepare_judged(small_parties, config, CPU)])]
    (pool,) = prepare([PartyData("pooled", table)], config, CPU, parts)
    whole = METHODS["ease"].fit(pool, config, Where(CPU)).lists  # type: ignore[attr-defined]
    users = torch.arange(5)
    for model, rows in zip(trained.lists or [], find_pooled_items(small_parties, table), strict=True):
        assert torch.equal(model.score(users), whole.score(users)[:, torch.from_numpy(rows)])


def test_descents_predict_by_their_equations(small_parties: list[vf.PartyData]) -> None:
    """SVD++, I-AutoRec and LightGCN along edges are the dense formulas of their papers."""
    (table, *_) = prepare(small_parties, vf.Config.preset("best", **{"split.kind": "rating"}), CPU)
    own = OwnRatings(table.input)
    rated = torch.zeros(own.graph.users, own.graph.items)
    rated[table.train.user.long(), table.train.item.long()] = 1.0
    count = rated.sum(1, keepdim=True).clamp(min=1)
    of_item = rated.sum(0).clamp(min=1)

    svd = ImplicitFactors(own, 1.0, torch.Generator().manual_seed(0))
    predicted = (svd.p + rated @ svd.y / count.sqrt()) @ svd.q.T
    users, items = svd.vectors()
    torch.testing.assert_close(users @ items.T, predicted, atol=1e-5, rtol=1e-4)

    coder = ItemAutoencoder(own, 1.0, torch.Generator().manual_seed(0))
    value = torch.zeros_like(rated)
    value[table.train.user.long(), table.train.item.long()] = table.train.rating - own.mean
    hidden = torch.sigmoid((value / own.unit).T @ coder.encoder / of_item.sqrt().unsqueeze(1))
    users, items = coder.vectors()
    torch.testing.assert_close(users @ items.T, coder.decoder @ hidden.T, atol=1e-5, rtol=1e-4)

    light = LightGraph(own, (2, 0.0), torch.Generator().manual_seed(0))
    near = rated / count.sqrt() / of_item.sqrt()
    twice = light.users + near @ light.items + near @ (near.T @ light.users)
    torch.testing.assert_close(light.vectors()[0], twice / 3, atol=1e-5, rtol=1e-4)


def test_tuned_simple_methods_have_the_same_number_of_trials() -> None:
    for name in SIMPLE:
        chosen = method(name)
        if isinstance(chosen, DescentMethod):
            assert len(chosen.options) == 9, name
    assert len(NEIGHBOURS) * len(SHRINKAGE) == len(FACTORS) ** 2 == len(EASE_OPTIONS) == len(RIDGES) == 9


def test_a_map_of_users_by_hand() -> None:
    """Known users have y = 2x + 1; a new one with x = 5 gets 11, and one without vectors elsewhere the mean, 4."""
    elsewhere = torch.tensor([[0.5], [1.5], [2.5], [5.0], [0.0]])
    own = torch.tensor([[2.0], [4.0], [6.0], [0.0], [0.0]])
    mapped = map_users(elsewhere, own, torch.tensor([True, True, True, False, False]), 1e-9)
    torch.testing.assert_close(mapped[:, 0], torch.tensor([2.0, 4.0, 6.0, 11.0, 4.0]))


@pytest.mark.parametrize("name", ["bias", "ease", "emcdr", "central", "best-gated"])
def test_withheld_users_are_not_looked_at(name: str, small_parties: list[vf.PartyData]) -> None:
    """With the split of the verdict, other ratings of withheld users at a party give the same model there."""
    settings = {"split.kind": "random", "split.fractions": (0.8, 0.1, 0.1), "final": False}
    short = {} if name in SIMPLE else {"training.epochs": 2}
    chosen = method(name)
    config = chosen.configure(vf.Config.preset(chosen.preset)).with_values(settings | short)
    changed = []
    for each in prepare_judged(small_parties, config, CPU):
        table = each.party.ratings
        withheld = each.parts == NEWCOMER
        assert withheld.any()
        rating = np.where(withheld, sum(table.scale) - table.rating, table.rating).astype(np.float32)
        changed.append(PartyData(each.party.name, replace(table, rating=rating)))
    first, again = (chosen.train(data, config, Where(CPU)) for data in (small_parties, changed))
    for a, b in zip(first.lists or first.models, again.lists or again.models, strict=True):
        assert torch.equal(a.score(torch.arange(9)), b.score(torch.arange(9)))


def test_the_pipeline_alone_is_what_a_party_serves_without_the_federation(
    small_parties: list[vf.PartyData],
) -> None:
    config = vf.Config.preset("best", **{"split.kind": "rating", "final": False, "training.epochs": 2})
    run = train(small_parties, config)
    trained = METHODS["pipeline-alone"].train(small_parties, config, Where(CPU))
    assert run.alone is not None
    assert run.lists is not None
    for fitted, own in ((trained.models, run.alone), (trained.lists, run.lists.alone)):
        for model, kept in zip(fitted or [], own or [], strict=True):
            assert torch.equal(model.score(torch.arange(9)), kept.score(torch.arange(9)))


def test_pooled_lists_are_mixed_with_those_of_the_party_and_separately_for_newcomers() -> None:
    """The pooled model knows what users 0 to 39 like, and is wrong about the newcomers, who like the most popular item."""
    users, items = torch.arange(80), 60
    pooled = torch.zeros(80, items)
    pooled[users, 1 + users % 50] = 1.0
    popular = torch.arange(items, 0, -1.0).repeat(80, 1)
    wrong = torch.zeros(80, items)
    popularity, own, whole = (
        PartyModel(scores, torch.eye(items), torch.eye(items)) for scores in (popular, wrong, pooled)
    )
    train = Pairs(users[:40], torch.full((40,), 59), torch.ones(40))
    valid = Pairs(users, torch.where(users < 40, 1 + users % 50, 0), torch.full((80,), 5.0))
    mixed = mix_lists([popularity, own, whole], PartyInput("a", 80, items, (1.0, 5.0), train, valid))
    assert mixed.score(users).argmax(1).tolist() == valid.item.tolist()


# -- central methods -------------------------------------------------------------------------------------------------------


def test_central_methods_cost_their_ratings_once(small_parties: list[vf.PartyData]) -> None:
    trained = method("central").train(small_parties, configured("central"), Where(CPU))
    assert trained.ledger.total() == 12 * sum(len(p.ratings) for p in small_parties)
    assert trained.ledger.total(kind="RoundReply") == 0


def test_a_pooled_model_is_cut_into_the_parties_items(small_parties: list[vf.PartyData]) -> None:
    """Row i of a party's part is the item of that id in the pooled table, in whatever order the parties come."""
    table = pool_parties(small_parties)
    rows = torch.arange(table.n_items, dtype=torch.float32).unsqueeze(1)
    for model, party in zip(
        cut(PartyModel(rows, rows, rows), table, small_parties), small_parties, strict=True
    ):
        named = table.item_ids[model.items[:, 0].long().numpy()]
        assert named.tolist() == party.ratings.item_ids.tolist()


def test_the_bias_method_is_the_bias_baseline(small_parties: list[vf.PartyData]) -> None:
    config = configured("bias")
    trained = method("bias").train(small_parties, config, Where(CPU))
    judged = evaluate(prepare(small_parties, config, CPU), trained.models)
    table = pool_parties(small_parties)
    parts = np.concatenate([split_ratings(p, config.split, config.seed) for p in small_parties])
    assert judged["test"]["rmse"] == pytest.approx(means_errors(table, parts).rmse, abs=1e-5)


def test_factors_find_a_matrix_of_rank_one() -> None:
    """r_uv = a_u b_v with every pair rated: what is left out of training is predicted from the rest."""
    rng = np.random.default_rng(0)
    a = rng.uniform(1, 2, 40)
    b = rng.uniform(1, 2, 30)
    user, item = np.divmod(np.arange(1200), 30)
    ratings = make_ratings(
        user.astype(str), item.astype(str), (a[user] * b[item]).astype(np.float32), name="rank one"
    )
    parties = vf.split_items(ratings, parties=2)
    config = configured(
        "mf", **{"training.epochs": 400, "training.batch": 0, "training.l2": 0.0, "model.dim": 1}
    )
    trained = pooled(parties, config, Where(CPU))
    judged = evaluate(prepare(parties, config, CPU), trained.models)
    assert judged["test"]["rmse"] < 0.05 < float(np.std(a[user] * b[item]))


@pytest.mark.parametrize("biases", [True, False])
def test_factors_along_edges_are_factors_by_pairs(small_parties: list[vf.PartyData], biases: bool) -> None:
    """Whole rounds take the products of the graph's edges, smaller ones those of pairs: the same gradients."""
    settings = {
        "model.form": "factors",
        "model.biases": biases,
        "exchange": "off",
        "lr": 1e-3,
    }
    runs = [
        vf.train(
            small_parties,
            vf.Config.preset("paper").with_values(
                {**settings, "mechanism": "none", "batch": batch, "epochs": 3}
            ),
        )
        for batch in (0, 1_000_000)
    ]
    torch.testing.assert_close(runs[0].public, runs[1].public, atol=1e-5, rtol=1e-4)


# -- FedSage, FedSage+ -----------------------------------------------------------------------------------------------------


def test_fedsage_sends_gradients_and_nothing_else(small_parties: list[vf.PartyData]) -> None:
    runtime = federation(small_parties, configured("fedsage"))
    seen: list[RoundReply] = []
    receive = runtime.coordinator.receive
    runtime.coordinator.receive = lambda name, reply: (seen.append(reply), receive(name, reply))[1]  # type: ignore[method-assign]
    runtime.round()
    assert all(reply.neighbourhoods is None and reply.gradient is not None for reply in seen)
    assert {reply.gradient.dtype for reply in seen if reply.gradient is not None} == {np.dtype(np.float32)}


def test_fedsage_of_one_party_is_central(small_parties: list[vf.PartyData]) -> None:
    """Own degrees are exact where there is nobody else."""
    whole = [PartyData("all", replace(pool_parties(small_parties), name="all"))]
    alone = vf.train(whole, configured("fedsage"))
    central = vf.train(whole, configured("central"))
    torch.testing.assert_close(alone.public, central.public, atol=1e-5, rtol=1e-4)


def test_a_generated_neighbourhood_by_hand() -> None:
    """Without inner weights the generator is its bias times how often the own share is missing; L is the squared distance."""
    operator = load_gnn(complete("gcn"))(dim=2, layers=1)
    graph = build_graph(np.array([0, 1]), np.array([0, 0]), users=2, items=1, ratio=4.0)
    weights = {name: torch.zeros(shape) for name, shape in operator.weights().items()}
    weights["imagine_bias"][:] = torch.tensor([1.0, -2.0])
    weights["imagine_bias"].requires_grad_()
    others = torch.tensor([[3.0, -6.0], [0.0, 0.0]])
    near, _, _ = operator.layer(0, weights, torch.rand(2, 2), torch.rand(1, 2), graph, others)
    torch.testing.assert_close(near.total - near.own, torch.tensor([[3.0, -6.0], [3.0, -6.0]]))
    (slope,) = torch.autograd.grad(0 * near.total.sum(), weights["imagine_bias"])
    torch.testing.assert_close(slope, torch.tensor([[2 * 3 * 3.0, 2 * 3 * -6.0]]))


def test_the_generator_learns_what_the_others_have(small_parties: list[vf.PartyData]) -> None:
    """After training, generated neighbourhoods are nearer to the others' than none at all."""
    chosen = configured("fedsage+", **{"training.epochs": 40})
    runtime = federation(small_parties, chosen)
    for _ in range(60):
        runtime.round()
    party = next(iter(runtime.parties.values()))
    others = party.progress.received.others
    assert others is not None
    views = party.model.views(party.replica.parameters)
    users, items = views["users"], party.progress.private.parameters["items"]
    distance = torch.zeros(())
    for k, theirs in enumerate(others):
        near, users, items = party.model.operator.layer(k, views, users, items, party.graph, theirs)
        distance += (near.total - near.own - theirs).square().sum()
    assert distance < 0.6 * others.square().sum()


# -- FedPerGNN -------------------------------------------------------------------------------------------------------------


def test_pseudo_rows_have_the_mean_and_covariance_of_true_ones() -> None:
    """20,000 rows: every moment within five standard errors, which by chance fails once in some 100,000 runs."""
    torch.manual_seed(0)
    rows = torch.randn(300, 3) @ torch.tensor(
        [[1.0, 0.5, 0.0], [0.0, 1.0, -0.7], [0.0, 0.0, 0.3]]
    ) + torch.tensor([1.0, 0.0, -2.0])
    drawn = like(rows, 20_000, KeyStream(simulated_secret(1, 0)))
    deviation = rows.std(0)
    assert ((drawn.mean(0) - rows.mean(0)).abs() < 5 * deviation / 20_000**0.5).all()
    bound = 5 * deviation[:, None] * deviation[None, :] * (2 / 20_000) ** 0.5
    assert ((drawn.T.cov() - rows.T.cov()).abs() < bound).all()


def test_pseudo_interactions_change_rows_of_others_only(
    small_parties: list[vf.PartyData], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = configured("fedpergnn")
    inputs = [p.input for p in prepare(small_parties, chosen, torch.device("cpu"))]
    runtime = local_federation(inputs, chosen, party=PseudoParty)
    starts = runtime.coordinator.open()
    party = next(iter(runtime.parties.values()))
    seen: list[torch.Tensor] = []

    def noisy(self: object, gradient: torch.Tensor, message: object) -> np.ndarray:
        seen.append(gradient)
        return gradient.numpy() + 100

    monkeypatch.setattr("verfedgnn.protocol.party.Party.protect_gradient", noisy)
    gradient = torch.randn(party.model.size)
    size = party.model.user_size
    before = gradient.clone()
    released = party.protect_gradient(gradient, starts[party.name])
    assert torch.equal(gradient, before)
    real = torch.zeros(party.data.users, dtype=torch.bool)
    real[party.batch(1).pairs.user.long().unique()] = True
    changed = (seen[0] != before)[:size].view(party.data.users, -1).any(1)
    assert not (changed & real).any()
    assert changed.any()
    assert torch.equal(seen[0][size:], before[size:])
    sent = torch.from_numpy(released[:size]).view(party.data.users, -1).any(1)
    assert torch.equal(sent, changed | real), "noise is on what is sent, and nothing else is"
    assert (released[size:] > 50).all()
    assert party.rows[party.data.name] == int(sent.sum())


def test_fedpergnn_counts_items_and_edges_not_sums(small_parties: list[vf.PartyData]) -> None:
    """Its ledger is that of the same training without an exchange, plus item embeddings every round and edges once."""
    config = configured("fedpergnn")
    trained = method("fedpergnn").train(small_parties, config, Where(CPU))
    without = train(small_parties, config.with_values({"exchange": "off"}), party=PseudoParty)
    rounds = trained.rounds
    items = [p.ratings.n_items for p in small_parties]
    for party, own in zip(small_parties, items, strict=True):
        for kind, way, many in (
            ("RoundReply", "up", rounds * own),
            ("RoundStart", "down", (rounds - 1) * (sum(items) - own)),
        ):
            found = trained.ledger.total(way, kind=kind, party=party.name)  # type: ignore[arg-type]
            plain = without.ledger.total(way, kind=kind, party=party.name)  # type: ignore[arg-type]
            if kind == "RoundReply":  # some rows of gradients in the place of all
                users = small_parties[0].ratings.n_users
                assert (
                    plain + 24 * many - (24 * users + 600) * rounds
                    < found
                    <= plain + 24 * many + 4 * users * rounds
                )
            else:
                assert found == pytest.approx(plain + 24 * many, rel=0.1)
        assert trained.ledger.total("up", kind="GraphExpansion", party=party.name) % 16 == 0
    assert trained.ledger.total("up", kind="GraphExpansion") > 0


def test_fedpergnn_counts_full_participation_only(small_parties: list[vf.PartyData]) -> None:
    with pytest.raises(vf.ConfigError, match="all parties in every round"):
        method("fedpergnn").train(
            small_parties, configured("fedpergnn", **{"training.participation": 0.5}), Where(CPU)
        )


@pytest.mark.parametrize("name", ["fedsage+", "fedpergnn", "best"])
def test_a_party_can_train_any_method_alone(name: str) -> None:
    """What lift and the gate do: the same settings, without whatever needs others."""
    assert solo_config(configured(name, "gat" if method(name).by_gnn else "gcn"), 0.5).exchange == "off"


def test_fedpergnn_sums_of_attention_fit_the_wire(small_parties: list[vf.PartyData]) -> None:
    """With noise on its weights attention grows far beyond what 32 bits hold beside their fraction."""
    from verfedgnn.protocol.forward_backward import from_fixed, neighbourhood_type, to_fixed

    config = configured("fedpergnn", "gat")
    assert neighbourhood_type(config) == np.int64
    assert method("fedpergnn").train(small_parties, config, Where(CPU)).rounds == 20
    large = torch.tensor([1e6, -3.25, 1e-6])
    torch.testing.assert_close(from_fixed(3 * to_fixed(large, 10, 64)), 3 * large, rtol=1e-3, atol=0)
    with pytest.raises(vf.VerFedGNNError, match="training has diverged"):
        to_fixed(large, 10)


def test_a_variant_of_a_party_leaves_no_run_folder(small_parties: list[vf.PartyData], tmp_path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(vf.ConfigError, match="subclass of Party"):
        train(small_parties, configured("fedpergnn"), party=PseudoParty, out=tmp_path / "run")
