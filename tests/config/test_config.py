"""The configuration tree: presets, overrides, files, and errors that say what to do."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from verfedgnn import Config, ConfigError
from verfedgnn.config import build_config, load_config, parse_settings, presets
from verfedgnn.config.sections import FactorModel, LaplaceGradients, TernaryGradients
from verfedgnn.config.settings import CHOICES
from verfedgnn.config.tree import settings
from verfedgnn.core.option_names import on_command_line


def test_presets_are_complete_and_distinct() -> None:
    assert presets() == ["best", "means", "paper", "private"]
    paper = Config.preset("paper", model="gat")
    assert (paper.model.gnn, paper.model.dim, paper.model.layers) == ("gat", 6, 2)
    assert (paper.training.lr, paper.gradients.r, paper.gradients.clip, paper.exchange) == (
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
        (["dim=0"], "model.dim must be greater than or equal to 1"),
        (["dim=big"], r"model\.dim must be a valid integer \(it is 'big'\)"),
        (["gate=maybe"], "training.gate must be a valid boolean"),
        (["mechanism=magic"], "'ternary', 'laplace', 'skellam', 'none' or 'rounded'"),
        (["fractions=[0.5,0.1,0.1]"], "add up to 1"),
        (["lr=nan"], "finite"),
        (["lr=inf"], "finite"),
        (["exchange=off", "kind=never"], "'auto', 'date', 'random', 'rating' or 'all'"),
    ],
)
def test_bad_settings_name_cause_and_remedy(settings: list[str], message: str) -> None:
    with on_command_line(), pytest.raises(ConfigError, match=message) as caught:
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
    with pytest.raises(ConfigError, match="there is no preset 'worst'; choose best, means, paper, private"):
        build_config(preset="worst")


def test_a_new_variant_keeps_shared_settings_and_drops_the_others() -> None:
    laplace = Config.preset("paper", mechanism="laplace", epsilon=2)
    assert laplace.gradients == LaplaceGradients(epsilon=2.0, rescale=0.1)
    assert Config.preset("paper", form="factors", exchange="off").model == FactorModel()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["r=3"], r"gradients\.r belongs to gradients\.mechanism = ternary, and here it is rounded"),
        (["gradients.epsilon=1"], r"gradients\.epsilon belongs to gradients\.mechanism = laplace"),
        (["mechanism=skellam"], r"gradients\.noise_multiplier must be set for"),
        (["layers=2"], r"model\.layers belongs to model\.form = propagation"),
        (["exchange=none"], r"exchange must be number, at least 0 or off"),
    ],
)
def test_a_setting_of_another_variant_is_an_error_that_names_it(settings: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        build_config(preset="best", overrides=parse_settings(settings))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("preset", "settings", "message"),
    [
        ("best", ["exchange=5"], "model.form = solved has no neighbourhoods to exchange"),
        ("best", ["batch=100"], "every rating and every party in every round"),
        ("best", ["participation=0.5"], "every rating and every party in every round"),
        ("best", ["mechanism=ternary"], "belong together"),
        ("best", ["biases=false", "raters=8"], "has no raters"),
        ("best", ["model.dim=5"], "at least 6 numbers"),
        ("paper", ["lists=true"], "lists = true needs model.form = solved"),
        ("paper", ["mechanism=none", "masking=true"], "masking needs integers"),
        ("paper", ["estimators=false"], "how many items each user has"),
        ("paper", ["form=factors"], "no neighbourhoods to exchange"),
        ("private", ["batch=100"], "every rating in every round"),
        ("private", ["bound=unset"], "bound the effect of a rating"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(
    preset: str, settings: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build_config(preset=preset, overrides=parse_settings(settings))


def test_files_and_presets_switch_variants(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[gradients]\nmechanism = "laplace"\n')
    assert build_config(preset=str(file)).gradients == LaplaceGradients()
    assert build_config(preset="paper", file=file).gradients == LaplaceGradients(rescale=0.1)
    file.write_text("[gradients]\nr = 7\n")
    assert load_config(file).gradients == TernaryGradients(r=7.0)
    file.write_text('[gradients]\nmechanism = "laplace"\nr = 7\n')
    with pytest.raises(ConfigError, match=r"gradients\.r belongs to gradients\.mechanism = ternary"):
        load_config(file)


def test_every_variant_has_its_own_fingerprint_and_file(tmp_path: Path) -> None:
    mechanisms = ("ternary", "laplace", "none")
    configs = [Config.preset("paper", mechanism=mechanism) for mechanism in mechanisms]
    for config in configs:
        (tmp_path / "c.toml").write_text(config.to_toml())
        assert load_config(tmp_path / "c.toml") == config
    assert len({config.fingerprint() for config in configs}) == 3
    assert Config.preset("paper").fingerprint() == configs[0].fingerprint()


def test_settings_that_variants_share_have_one_explanation() -> None:
    for choice in CHOICES.values():
        names = {name for variant in choice.variants.values() for name in variant.model_fields} - {choice.tag}
        for name in names:
            texts = {choice.variants[tag].model_fields[name].description for tag in choice.having(name)}
            assert len(texts) == 1, f"{choice.section}.{name}"


def test_lists_are_trained_with_the_rounds_and_the_protection_of_the_ratings() -> None:
    config = Config.preset("best", seed=3, epochs=50, patience=4, **{"model.dim": 16, "split.kind": "random"})
    assert config.trains_lists
    assert not config.ranks
    lists = config.for_lists()
    assert lists.ranks
    assert (lists.gradients, lists.split, lists.masking) == (config.gradients, config.split, config.masking)
    assert lists.exchange == config.exchange
    assert lists.training == config.training.model_copy(update={"epochs": 37})  # three quarters of them
    assert (lists.model.raters, lists.seed, lists.base) == (0, 3, "best")
    assert not lists.trains_lists  # there is no third training
    assert lists.fingerprint() != config.fingerprint()


def test_who_trains_lists() -> None:
    best = Config.preset("best")
    assert best.trains_lists
    for off in ({"gate": False}, {"lists": False}):
        assert not best.with_values(off).trains_lists
    for name in ("paper", "private"):
        assert not Config.preset(name).trains_lists


def test_what_is_served_is_trained_on_every_rating_without_choosing_anything() -> None:
    config = Config.preset("best", seed=3, **{"model.dim": 16})
    assert config.trains_final
    final = config.for_final()
    assert final.split.kind == "all"
    assert (final.model, final.gradients, final.masking) == (config.model, config.gradients, config.masking)
    for each in (final, final.for_lists()):
        assert each.training.evaluate_every == each.training.epochs, "one validation, at the end"
        assert not each.training.patience
        assert not each.trains_final
    assert final.for_lists().training.epochs < final.training.epochs < config.training.epochs
    assert len({each.fingerprint() for each in (config, config.for_lists(), final, final.for_lists())}) == 4


def test_who_trains_on_every_rating() -> None:
    for name, expected in {"best": True, "private": True, "paper": False}.items():
        assert Config.preset(name).trains_final is expected, name
    for off in ({"gate": False}, {"final": False}, {"split.kind": "all"}):
        assert not Config.preset("best").with_values(off).trains_final


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"split.kind": "date"}, "split.kind = date needs split.dates"),
        ({"split.dates": ["2025-03-01", "2025-01-01"]}, "split.dates must be in order"),
        ({"split.dates": ["2025-03-01", "2025-03-01"]}, "split.dates must be in order"),
        ({"split.dates": ["2025-03-01", "soon"]}, "split.dates.1"),
        ({"split.fractions": [0.5, 0.2, 0.2]}, "must be shares that add up to 1"),
    ],
)
def test_a_split_that_cannot_be_made_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config.preset("best").with_values(values)


def test_dates_can_be_given_as_text_and_are_kept_in_files(tmp_path: Path) -> None:
    given = parse_settings(["split.kind=date", 'split.dates=["2025-01-01", "2025-03-01"]'])
    config = build_config(preset="best", overrides=given)
    assert config.split.dates == (date(2025, 1, 1), date(2025, 3, 1))
    (tmp_path / "c.toml").write_text(config.to_toml())
    assert load_config(tmp_path / "c.toml") == config
