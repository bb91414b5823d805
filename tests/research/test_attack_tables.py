"""What the updates of public tables tell a curious party, and how the audit reports it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import verfedgnn as vf
from verfedgnn.research.attacks import table_attack
from verfedgnn.research.attacks.recording import record_federation
from verfedgnn.research.attacks.sum_attacks import judge_odds
from verfedgnn.research.attacks.table_attack import attack_tables, item_atoms

Found = dict[str, dict[str, float | None]]


def best(**values: object) -> vf.Config:
    small = {"gate": False, "dim": 8, "model.raters": 16, "lists": False, "exchange.mode": "off"}
    return vf.Config.preset("best", **(small | values))


@pytest.fixture(scope="module")
def parties() -> list[vf.PartyData]:
    """Three parties with 20 items each."""
    table = vf.data.synthetic_ratings(users=150, items=60, ratings=3500, seed=5)
    return vf.split_items(table, parties=3, seed=5)


@pytest.fixture(scope="module")
def plain(parties: list[vf.PartyData]) -> tuple[Found, list[tuple[Tensor, ...]]]:
    """The attacks on gradients that are sent without protection, and what they were judged by."""
    judged: list[tuple[Tensor, ...]] = []

    def keep(*values: Tensor) -> dict[str, float | None]:
        judged.append(values)
        return judge_odds(*values)

    unprotected = best(masking=False, **{"gradients.mechanism": "none", "gradients.clip": "unset"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_attack, "judge_odds", keep)
        found = attack_tables(parties, unprotected, rounds=60, victims=100)
    return found, judged


def test_rows_of_marks_are_sums_of_atoms(parties: list[vf.PartyData]) -> None:
    federation = record_federation(parties, best())
    for number in (1, 2):
        federation.round()
        party = federation.parties[1]
        batch = party.batch(number)
        assert batch.read is not None
        atoms = item_atoms(party, number)["rater_marks"]
        rows = party.edges.sum_items(atoms.unsqueeze(0), batch.read / party.config.training.read)[0]
        sent = party.model.views(party.gradient)["rater_marks"]
        assert float(sent.abs().max()) > 0.01
        assert torch.allclose(rows, sent, atol=1e-4)


def test_unprotected_tables_give_items_away_and_only_those_of_the_right_user(
    plain: tuple[Found, list[tuple[Tensor, ...]]],
) -> None:
    found, judged = plain
    for how, least in (("fakes", 0.9), ("insider", 0.95)):
        figures = found[f"colluders, {how}, all tables"]
        assert all(figures[key] > least for key in ("all", "within", "held"))  # type: ignore[operator]
    single = found["party, fakes, all tables"]
    assert single["all"] > single["guess"] + 0.1  # type: ignore[operator]
    assert single["held"] > 0.75  # type: ignore[operator]
    odds, *truth = judged[list(found).index("colluders, insider, all tables")]
    someone_else = torch.randperm(len(odds), generator=torch.Generator().manual_seed(1))
    shuffled = judge_odds(odds[someone_else], *truth)
    assert abs(shuffled["within"] - 0.5) < 0.06  # type: ignore[operator]
    assert abs(shuffled["held"] - 0.5) < 0.06  # type: ignore[operator]


def test_masked_ternary_gradients_leave_less_to_read(
    parties: list[vf.PartyData], plain: tuple[Found, list[tuple[Tensor, ...]]]
) -> None:
    found = attack_tables(parties, best(), rounds=60, victims=100, method="party, fakes")
    assert list(found) == [name for name in plain[0] if name.startswith("party, fakes")]
    assert found["party, fakes, all tables"]["held"] < plain[0]["party, fakes, all tables"]["held"] - 0.1  # type: ignore[operator]
    without = attack_tables(parties, best(**{"model.raters": 0}), rounds=5, victims=20, method="party, fakes")
    assert list(without) == ["party, fakes, users", "party, fakes, all tables"]
