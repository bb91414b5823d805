"""The configuration tree: presets, overrides, files, and errors that say what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from verfedgnn import Config, ConfigError
from verfedgnn.config import build_config, load_config, parse_settings, presets, settings
from verfedgnn.config.exchange_modes import MaskedExchange, NoExchange, NoisedExchange, ProjectedExchange
from verfedgnn.config.gradient_mechanisms import LaplaceGradients
from verfedgnn.config.model_forms import Gnn, MessageModel
from verfedgnn.config.variants import CHOICES
from verfedgnn.core.option_names import on_command_line


def test_presets_are_complete_and_distinct() -> None:
    assert presets() == ["best", "lean", "paper", "private", "ranking", "solved"]
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
        (["dim=0"], "model.dim must be at least 1"),
        (["dim=big"], r"model\.dim must be a whole number \(it is 'big'\)"),
        (["gate=maybe"], "training.gate must be true or false"),
        (["mechanism=magic"], "'ternary', 'laplace', 'skellam', 'none' or 'rounded'"),
        (["fractions=[0.5,0.1,0.1]"], "add up to 1"),
        (["lr=nan"], "finite"),
        (["lr=inf"], "finite"),
        (["mode=exact", "kind=never"], "'rating', 'time' or 'newcomers'"),
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
    with pytest.raises(ConfigError, match="there is no preset 'worst'; choose best, lean, paper"):
        build_config(preset="worst")


def test_a_new_variant_keeps_shared_settings_and_drops_the_others() -> None:
    best = Config.preset("best")
    noised = best.with_values({"mode": "noised", "exchange.noise": "0.05", "row_clip": 1})
    assert noised.exchange == NoisedExchange(noise=0.05, row_clip=1.0, bits=16, every=5, backward=True)
    projected = noised.with_values({"exchange.mode": "projected"})
    assert projected.exchange == ProjectedExchange(bits=16, every=5, backward=True)
    assert best.with_values({"mode": "off"}).exchange == NoExchange()
    laplace = Config.preset("paper", mechanism="laplace", epsilon=2)
    assert laplace.gradients == LaplaceGradients(epsilon=2.0, rescale_users=0.1, rescale_weights=0.1)
    assert Config.preset("paper", form="messages").model == MessageModel()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["ratio=3"], r"exchange\.ratio belongs to exchange\.mode = projected, and here it is masked"),
        (["noise=3"], r"exchange\.noise belongs to exchange\.mode = noised"),
        (["mode=off", "every=3"], r"exchange\.every belongs to .* = projected, masked, noised or exact"),
        (["mode=noised"], r"exchange\.noise and exchange\.row_clip must be set for exchange\.mode = noised"),
        (["gradients.epsilon=1"], r"gradients\.epsilon belongs to gradients\.mechanism = laplace"),
        (["mechanism=skellam"], r"gradients\.noise_multiplier must be set for"),
        (["generator=true"], r"model\.generator belongs to model\.form = propagation"),
        (["layers=2"], r"model\.layers belongs to model\.form = propagation"),
        (["mode=none"], r"exchange\.mode must be 'projected', 'masked', 'noised', 'exact' or 'off'"),
        (["bits=64"], r"exchange\.bits must be 12, 16 or 32 for exchange\.mode = masked"),
        (["mode=noised", "noise=5", "row_clip=1", "bits=12"], "does not fit into 12 bits"),
    ],
)
def test_a_setting_of_another_variant_is_an_error_that_names_it(settings: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        build_config(preset="best", overrides=parse_settings(settings))
    assert "\n" not in str(caught.value)


def test_files_and_presets_switch_variants(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        'masking = true\n[exchange]\nmode = "masked"\n[gat.exchange]\nmode = "projected"\nratio = 7\n'
    )
    assert build_config(preset=str(file)).exchange == MaskedExchange()
    assert build_config(preset=str(file), model="gat").exchange == ProjectedExchange(ratio=7.0)
    file.write_text('masking = true\n[exchange]\nmode = "masked"\n')
    assert build_config(preset="paper", file=file).exchange == MaskedExchange()
    file.write_text("[exchange]\nratio = 7\n")
    assert load_config(file).exchange == ProjectedExchange(ratio=7.0)
    file.write_text('[exchange]\nmode = "off"\nratio = 7\n')
    with pytest.raises(ConfigError, match=r"exchange\.ratio belongs to exchange\.mode = projected"):
        load_config(file)


@pytest.mark.parametrize("mode", ["projected", "masked", "exact", "off"])
def test_every_variant_has_its_own_fingerprint_and_file(tmp_path: Path, mode: str) -> None:
    config = Config.preset("paper", mode=mode, masking=True)
    (tmp_path / "c.toml").write_text(config.to_toml())
    assert load_config(tmp_path / "c.toml") == config
    assert Config.preset("paper", masking=True).fingerprint() == config.fingerprint() or mode != "projected"
    others = {
        Config.preset("paper", mode=other, masking=True).fingerprint() for other in ("exact", "off", "masked")
    }
    assert len(others) == 3


def test_settings_that_variants_share_have_one_explanation() -> None:
    for choice in CHOICES.values():
        names = {name for variant in choice.variants.values() for name in variant.model_fields} - {choice.tag}
        for name in names:
            texts = {choice.variants[tag].model_fields[name].description for tag in choice.having(name)}
            assert len(texts) == 1, f"{choice.section}.{name}"


@pytest.mark.parametrize("gnn", ["gcn", "gat", "ggnn"])
def test_lists_are_trained_with_preset_ranking_and_the_protection_of_the_ratings(gnn: Gnn) -> None:
    config = Config.preset(
        "best",
        model=gnn,
        seed=3,
        epochs=50,
        patience=4,
        bits=12,
        r=4.0,
        raters=0,
        **{"model.dim": 16, "user_blocks": 2, "split.kind": "newcomers", "checkpoint_every": 7},
    )
    assert config.trains_lists
    lists = config.for_lists()
    ranking = Config.preset("ranking")
    assert lists.training.ranks
    assert lists.training.gate
    assert (lists.gradients, lists.split, lists.masking) == (config.gradients, config.split, config.masking)
    assert lists.exchange == config.exchange.model_copy(update={"every": ranking.exchange.every})
    assert lists.training.epochs == 133  # 50 x 2.6667
    for name in ("patience", "user_blocks", "checkpoint_every", "evaluate_every", "participation"):
        assert getattr(lists.training, name) == getattr(config.training, name)
    for name in ("lr", "l2_row", "l2_rating", "negatives", "batch"):
        assert getattr(lists.training, name) == getattr(ranking.training, name)
    assert (lists.model.gnn, lists.model.dim, lists.seed, lists.base) == ("gcn", 16, 3, "best")
    assert not lists.trains_lists  # there is no third training
    assert not lists.shares_user_means
    assert lists.fingerprint() != config.fingerprint()
    assert lists.for_lists() == lists


def test_who_trains_lists_and_who_shares_means() -> None:
    best = Config.preset("best")
    assert best.trains_lists
    assert best.shares_user_means
    for off in ({"gate": False}, {"lists": False}):
        assert not best.with_values(off).trains_lists
    assert best.with_values({"gate": False}).shares_user_means, "biases start at means"
    assert not best.with_values({"gate": False, "from_means": False}).shares_user_means
    assert best.with_values({"lists": False}).shares_user_means
    for name in ("paper", "private", "ranking"):
        assert not Config.preset(name).trains_lists
        assert not Config.preset(name).shares_user_means
    assert not best.with_values({"exchange.mode": "off"}).shares_user_means


def test_a_night_has_a_tenth_of_the_epochs() -> None:
    config = Config.preset("best", seed=3, dim=8)
    night = config.for_night()
    assert (night.training.epochs, night.training.first_epochs, night.training.reads) == (30, 300, 4)
    unchanged = {"epochs": 300, "first_epochs": None, "reads": 1}
    assert night.with_values(unchanged) == config
    assert night.for_night() == night, "the second night has as many epochs as the first"
    assert (config.is_for_nights, night.is_for_nights) == (False, True)
    assert night.for_full_training() == config
    assert config.for_full_training() == config
    lists = night.for_lists()
    assert (lists.training.epochs, lists.training.first_epochs) == (80, 800)
    private = Config.preset("private").for_night().training
    assert (private.epochs, private.first_epochs, private.reads) == (4, 40, 1)
    assert Config.preset("paper", epochs=5).for_night().training.epochs == 1
    assert Config.preset("best", reads=6).for_night().training.reads == 6


def test_two_parties_exchange_noised_instead_of_masked_neighbourhoods() -> None:
    for name in ("best", "ranking"):
        config = Config.preset(name)
        two = config.for_parties(2)
        assert isinstance(two.exchange, NoisedExchange)
        assert (two.exchange.noise, two.exchange.row_clip) == (0.05, 0.5)
        kept = ("bits", "backward", "every")
        for setting in kept:
            assert getattr(two.exchange, setting) == getattr(config.exchange, setting)
        assert two.masking
        assert two.for_parties(2) == two
        assert two.for_lists().exchange.mode == "noised"
        for count in (1, 3, 10):
            assert config.for_parties(count) is config
    for name in ("paper", "private"):
        assert Config.preset(name).for_parties(2) == Config.preset(name)
    chosen = Config.preset("best", **{"exchange.mode": "noised", "noise": 0.4, "row_clip": 2.0})
    assert chosen.for_parties(2) == chosen
