"""The configuration tree: presets, overrides, files, and errors that say what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from verfedgnn import Config, ConfigError
from verfedgnn.config import build_config, load_config, parse_settings, presets, settings


def test_presets_are_complete_and_distinct() -> None:
    assert presets() == ["best", "paper", "private", "ranking"]
    paper = Config.preset("paper", model="gat")
    assert (paper.model.gnn, paper.model.dim, paper.model.layers) == ("gat", 6, 2)
    assert (paper.training.lr, paper.gradients.r, paper.gradients.clip, paper.exchange.ratio) == (
        0.05,
        3.0,
        0.5,
        5.0,
    )
    assert Config.preset("best").training.batch == 0
    assert paper.fingerprint() != Config.preset("paper").fingerprint()


def test_every_field_has_its_sentence() -> None:
    for path, setting in settings().items():
        assert setting.explanation.endswith("."), path
        assert setting.range, path


def test_toml_round_trip(tmp_path: Path) -> None:
    config = Config.preset(
        "paper", mechanism="none", threshold=3.5, fractions=[0.8, 0.1, 0.1], **{"gradients.clip": "unset"}
    )
    assert config.gradients.clip is None
    (tmp_path / "c.toml").write_text(config.to_toml())
    again = load_config(tmp_path / "c.toml")
    assert again == config
    assert again.fingerprint() == config.fingerprint()


def test_files_and_settings_override_in_order(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('[model]\ngnn = "ggnn"\ndim = 9\n[training]\nepochs = 7\n')
    config = build_config(
        preset="paper", file=tmp_path / "mine.toml", overrides=parse_settings(["dim=11", "training.lr=0.1"])
    )
    assert (config.model.gnn, config.model.dim, config.training.epochs, config.training.lr) == (
        "ggnn",
        11,
        7,
        0.1,
    )
    assert build_config(file=tmp_path / "mine.toml", model="gat").model.gnn == "gat"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["dim"], "key=value"),
        (["dimm=3"], "did you mean model.dim"),
        (["zzz=3"], "verfedgnn settings"),
        (["dim=0"], "model.dim: Input should be greater than or equal to 1"),
        (["dim=big"], "model.dim"),
        (["mechanism=magic"], "'ternary', 'laplace', 'skellam' or 'none'"),
        (["fractions=[0.5,0.1,0.1]"], "add up to 1"),
        (["lr=nan"], "finite"),
        (["lr=inf"], "finite"),
        (["mode=exact", "kind=never"], "'rating' or 'time'"),
    ],
)
def test_bad_settings_name_cause_and_remedy(settings: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        build_config(overrides=parse_settings(settings))
    assert "\n" not in str(caught.value)


def test_bad_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        build_config(file=tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("a = ")
    with pytest.raises(ConfigError, match="not valid TOML"):
        build_config(file=tmp_path / "bad.toml")
    (tmp_path / "odd.toml").write_text("[model]\nsize = 3\n")
    with pytest.raises(ConfigError, match=r"model\.size"):
        build_config(file=tmp_path / "odd.toml")
    with pytest.raises(ConfigError, match="there is no preset 'worst'; choose best, paper"):
        build_config(preset="worst")
