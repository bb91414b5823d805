"""The first rounds of lists, in which parties withhold users to learn how to serve newcomers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import verfedgnn as vf
from verfedgnn.core.errors import Interrupted
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.prepared_data import Prepared, prepare
from verfedgnn.training.loop import TrainingLoop
from verfedgnn.training.party_gate import unseen_parts

CPU = torch.device("cpu")


def ranking(**values: object) -> vf.Config:
    return vf.Config.preset("ranking", epochs=16, evaluate_every=2, dim=4, **values).with_values(
        {"newcomer_rounds": 4}
    )


def without_withheld(party: Prepared) -> Prepared:
    """Return a party that never had the training ratings of its withheld users."""
    data = party.input.without_withheld()
    return replace(party, train=data.train, withheld=None)


@pytest.mark.parametrize("stack", [True, False], ids=["stacked", "one by one"])
def test_first_rounds_see_nothing_of_withheld_users(small_parties: list[vf.PartyData], stack: bool) -> None:
    """After the first rounds, models and public parameters are those of parties that do not have these ratings.

    The number of ratings is announced in full, so it is set to that of the others.
    """
    config = ranking(batch=0, rescale_by_ratings=False)
    parties = prepare(small_parties, config, CPU)
    assert all(party.withheld is not None and party.withheld.sum() > 20 for party in parties)
    first = TrainingLoop(parties, config, stack=stack)
    other = TrainingLoop([without_withheld(party) for party in parties], config, stack=stack)
    for _ in range(4):
        first.runtime.round()
        other.runtime.round()
    assert torch.equal(first.coordinator.replica.parameters, other.coordinator.replica.parameters)
    for name, party in first.runtime.parties.items():
        kept = party.progress.first_rounds
        seen = other.runtime.parties[name].progress.evaluated
        assert kept is not None
        assert seen is not None
        assert kept[0] == 4
        assert all(torch.equal(kept[1][key], seen[1][key]) for key in kept[1])
    first.runtime.round()
    other.runtime.round()
    first.runtime.round()
    other.runtime.round()
    assert not torch.equal(first.coordinator.replica.parameters, other.coordinator.replica.parameters)
    assert all(party.progress.first_rounds[0] == 4 for party in first.runtime.parties.values())  # type: ignore[index]


def test_the_model_alone_treats_withheld_users_as_newcomers(small_parties: list[vf.PartyData]) -> None:
    config = ranking()
    (party, *_) = prepare(small_parties, config, CPU)
    rng = torch.Generator().manual_seed(0)
    items = torch.randn(party.party.ratings.n_items, 3, generator=rng)
    model = PartyModel(torch.randn(120, 3, generator=rng), items, items)
    found = unseen_parts({"popularity": model, "EASE": model, "alone": model}, None, party.input)
    assert "EASE" not in found
    assert torch.equal(found["alone"].users[0], found["alone"].users[1])


def test_a_continued_training_withholds_nobody_also_when_it_is_resumed(
    small_parties: list[vf.PartyData], tmp_path: Path
) -> None:
    """The earlier run has seen all users. A stop in the first rounds does not change the result."""
    config = ranking()
    vf.train(small_parties, config, out=tmp_path / "before")
    whole = vf.train(small_parties, config, start_from=tmp_path / "before", out=tmp_path / "whole")
    with pytest.raises(Interrupted):
        vf.train(
            small_parties, config, start_from=tmp_path / "before", out=tmp_path / "run", stop=lambda: True
        )
    resumed = vf.resume(tmp_path / "run")
    assert resumed.metrics["public"] == whole.metrics["public"]
    gates = [run.metrics["parties"][0]["gate"] for run in (resumed, whole)]
    assert gates[0] == gates[1]
