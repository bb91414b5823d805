"""The contract of a method: what a comparison relies on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch

from verfedgnn.config import Config
from verfedgnn.data import TEST, PartyData
from verfedgnn.plugins import register
from verfedgnn.runs.metrics_file import evaluate
from verfedgnn.runs.prepared_data import prepare, split_ratings
from verfedgnn.training.progress import Progress
from verfedgnn_research.baselines import METHODS
from verfedgnn_research.baselines.method import Declaration, Method, MethodResult, Where
from verfedgnn_research.gnn_contract import CPU, parties

SMALL = parties(40, 30, 500)
"""Settings for tests in which accuracy does not matter."""


class MethodContract:
    """Tests of everything a comparison relies on. Inherit from it, set `method` and run pytest."""

    method: ClassVar[type[Method]]
    settings: ClassVar[Mapping[str, Any]] = {}
    """Settings that make the method fast enough for a test, by name."""
    rmse: ClassVar[tuple[float, float]] = (0.7, 1.05)
    """Bounds of the test RMSE on `parties()`: the mean rating has 1.06, user and item
    means 0.977.
    """
    sends: ClassVar[bool] = True
    """Whether anything leaves a party."""
    _kept: ClassVar[MethodResult]

    def test_it_says_what_it_is(self) -> None:
        """Check that the method has a name, a title and a sentence on what it protects."""
        chosen = self._method()
        assert chosen.name
        assert chosen.title
        assert isinstance(chosen.declares, Declaration)
        assert len(chosen.declares.protects.split()) > 2, (
            "one sentence: what is protected, and what is shown to whom"
        )
        assert isinstance(self._config(), Config)

    def test_every_party_gets_a_model(self) -> None:
        """Check that there is a model for each party in order, for all users and its own items, whose
        products are good ratings.
        """
        data = parties()
        events = list[Progress]()
        config = self._config()
        trained = self._train(data, events)
        assert [len(model.items) for model in trained.models] == [party.ratings.n_items for party in data]
        for model in trained.models:
            assert len(model.users) == data[0].ratings.n_users
            assert model.users.shape[1] == model.items.shape[1]
        judged = evaluate(
            prepare(data, config, CPU),
            trained.models,
            ranks=config.ranks,
            lists=trained.lists,
        )
        if config.ranks:  # it predicts no ratings
            assert judged["test"]["ndcg@20"] > 0.8 * judged["popularity"]["ndcg@20"]
        else:
            low, high = self.rmse
            assert low < judged["test"]["rmse"] < high, judged["test"]["rmse"]
        assert events or not trained.rounds, "rounds are told to whoever watches (Where.watch)"
        assert trained.seconds > 0

    def test_same_seed_same_bits(self) -> None:
        """Check that the same seed gives the same models and bytes."""
        first = self._trained()
        again = self._train(SMALL)
        for a, b in zip(first.models, again.models, strict=True):
            assert torch.equal(a.users, b.users)
            assert torch.equal(a.items, b.items)
        assert first.ledger.to_dict() == again.ledger.to_dict()

    def test_the_test_part_is_not_looked_at(self) -> None:
        """Check that other test ratings give the same model to the bit."""
        config = self._config()
        changed = []
        for party in SMALL:
            table = party.ratings
            hidden = split_ratings(party, config.split, config.seed) == TEST
            rating = np.where(hidden, sum(table.scale) - table.rating, table.rating).astype(np.float32)
            changed.append(PartyData(party.name, replace(table, rating=rating)))
        for a, b in zip(self._trained().models, self._train(changed).models, strict=True):
            assert torch.equal(a.users, b.users)
            assert torch.equal(a.items, b.items)

    def test_bytes_are_counted(self) -> None:
        """Check that bytes are counted for every party if anything leaves it; pooling pays for each
        rating.
        """
        ledger = self._trained().ledger
        for party in SMALL:
            sent = ledger.total("up", party=party.name)
            assert bool(sent) == self.sends, f"{party.name}: {sent} bytes counted"
            if self._method().declares.storage == "central":
                assert sent >= len(party.ratings), "ratings are elsewhere while it trains, so they were sent"

    def _method(self) -> Method:
        if type(METHODS.get(self.method.name)) is not self.method:
            register(self.method)
        return self.method()

    def _config(self) -> Config:
        chosen = self._method()
        split = {"split.kind": "rating", "split.fractions": (0.6, 0.2, 0.2), "final": False}
        base = Config.preset(chosen.preset).with_values(split)
        return chosen.configure(base).with_values(self.settings)

    def _trained(self) -> MethodResult:
        """Return one training on the small parties, shared by several tests."""
        here = type(self)
        if "_kept" not in vars(here):
            here._kept = self._train(SMALL)
        return here._kept

    def _train(self, data: list[PartyData], events: list[Progress] | None = None) -> MethodResult:
        return self._method().train(
            data, self._config(), Where(CPU, None if events is None else events.append)
        )
