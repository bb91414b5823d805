"""`verfedgnn attack`: three attackers of one run, and runs that cannot be attacked so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import verfedgnn as vf
from verfedgnn_research.cli.attack_command import attack


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attacked") / "run"
    parties = vf.split_items(vf.data.synthetic_ratings(users=120, items=60, ratings=3000, seed=2), parties=3)
    vf.train(
        parties,
        vf.Config.preset("best").with_values({"epochs": 12, "gate": False, "dim": 8}),
        out=folder,
    )
    return folder


@pytest.mark.parametrize("who", ["outsider", "coordinator", "party:party-0"])
def test_what_each_attacker_finds_is_written(run: Path, who: str, capsys: pytest.CaptureFixture[str]) -> None:
    attack(run, who, None, "", 11, 40)
    found = json.loads((run / "attacks" / f"{who.split(':')[0]}.json").read_text())
    if who == "outsider":
        assert 0.4 < found["validation"]["auc"] < 0.6
    elif who == "coordinator":
        assert list(found["rounds"]) == ["1", "10", "11"]
    else:
        assert all(0 <= row["all"] <= 1 and "guess" in row for row in found.values())
    assert "written:" in capsys.readouterr().out


def test_attackers_that_do_not_exist(run: Path) -> None:
    with pytest.raises(vf.ConfigError, match="this run has no party 'nobody'; choose from: party-0"):
        attack(run, "party:nobody", None, "", 5, 40)
    with pytest.raises(vf.ConfigError, match="its own users' items"):
        attack(run, "party:1", "party-1", "", 5, 40)


def test_only_the_attacks_asked_for(run: Path) -> None:
    attack(run, "party:0", "2", "insider", 7, 20)
    found = json.loads((run / "attacks" / "party.json").read_text())
    assert set(found) == {"party, insider", "colluders, insider"}
    with pytest.raises(vf.ConfigError, match="no attack has 'magic' in its name; choose from: party, fakes"):
        attack(run, "party:0", "2", "magic", 7, 20)
    with pytest.raises(vf.ConfigError, match="trains no lists"):
        attack(run, "party:0", "2", "", 7, 20, True)
