"""Messages name flags on the command line and arguments in Python."""

from __future__ import annotations

from typing import Any

import pytest

import verfedgnn as vf
from verfedgnn.config.tree import setting_path, settings
from verfedgnn.core.option_names import on_command_line, option, setting


@pytest.mark.parametrize(
    ("name", "value", "flag", "argument"),
    [
        ("missing", "drop", "--read missing=drop", 'missing="drop"'),
        ("scale", (1, 5), "--read scale=1,5", "scale=(1, 5)"),
        ("events", {"view": 1, "buy": 2.5}, "--events view=1,buy=2.5", 'events={"view": 1, "buy": 2.5}'),
        ("columns", {"user": "..."}, "--columns user=...", 'columns={"user": ...}'),
        ("overwrite", True, "--overwrite", "overwrite=True"),
        ("out", None, "--out", "out"),
    ],
)
def test_an_option_is_named_for_its_reader(name: str, value: Any, flag: str, argument: str) -> None:
    assert option(name, value) == argument
    with on_command_line():
        assert option(name, value) == flag
    assert option(name, value) == argument


def test_a_setting_is_named_for_its_reader() -> None:
    assert setting("masking", True) == "masking=True"
    assert setting("model.form", "means") == 'form="means"'
    with on_command_line():
        assert setting("masking", True) == "--set masking=true"
        assert setting("model.form", "means") == "--set model.form=means"


def test_a_keyword_argument_names_one_setting() -> None:
    for path in settings():
        assert setting_path(path.split(".")[-1]) == path


@pytest.mark.parametrize(
    "values",
    [
        {"gradients.clip": 0.9},
        {"exchange": 1.0},
        {"estimators": False},
        {"gradients.mechanism": "skellam", "gradients.noise": 1.0},
        {"exchange.noise": 0.1},
    ],
)
def test_configurations_are_refused_in_pythons_words(values: dict[str, Any]) -> None:
    with pytest.raises(vf.ConfigError) as caught:
        vf.Config.preset("paper", **values)
    assert "--" not in str(caught.value)
