"""The shipped record of what attacks reached."""

from __future__ import annotations

from typing import Any

import pytest

import verfedgnn as vf
from verfedgnn.privacy.visibility import who_sees_what
from verfedgnn.reports.phrases import audit_records, describe_learnt


def test_every_record_says_what_others_learn_and_where_it_was_measured() -> None:
    records = audit_records()
    assert set(records) == {"best", "private"}
    for record in records.values():
        assert record["learnt"].endswith(".")
        assert all(0.4 < value <= 1 for value in record["figures"].values())
        assert record["data"]
        assert len(record["commit"]) >= 7


@pytest.mark.parametrize(
    ("preset", "changes", "told"),
    [
        ("best", {}, True),
        ("best", {"training.epochs": 7, "lists": False}, True),
        ("best", {"gradients.noise": 0.25}, False),
        ("best", {"masking": False}, False),
        ("best", {"unprotected": ["noise"]}, False),
        ("private", {}, True),
        ("private", {"gradients.noise_multiplier": 3.0}, False),
        ("paper", {}, False),
    ],
)
def test_a_record_is_told_only_of_what_protects_as_its_preset(
    preset: str, changes: dict[str, Any], told: bool
) -> None:
    text = describe_learnt(vf.Config.preset(preset).with_values(changes))
    assert (text in [record["learnt"] for record in audit_records().values()]) is told
    assert told or "verfedgnn audit" in text


def test_two_parties_are_told_that_they_see_each_other() -> None:
    config = vf.Config.preset("best")
    assert describe_learnt(config, 2).startswith("The other party sees your rounded gradients, with noise. ")
    rows = {what: other for what, _, other in who_sees_what(config, 2)}
    assert rows["gradient of public parameters"].startswith("the other party's own (rounded")
    assert rows["number of training ratings"] == "the other party's own"
