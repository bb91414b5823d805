"""The expected cost of a federation's training, from its own first rounds."""

from __future__ import annotations

import logging

import pytest

from verfedgnn.federation.event_log import CostOutlook


def test_usual_rounds_are_extrapolated_to_all_rounds(caplog: pytest.LogCaptureFixture) -> None:
    outlook = CostOutlook("ratings", stops_early=True)
    with caplog.at_level(logging.INFO, "verfedgnn.federation"):
        for round in range(1, 30):
            early = min(round, 2)  # the first rounds are small and slow
            late = round - early
            outlook.note_round(round, 111, 10_000 * early + 1_000_000 * late, now=30.0 * early + 6.0 * late)
    (record,) = caplog.records
    fields = record.__dict__["fields"]
    assert record.getMessage() == "expected"
    assert fields["minutes_left"] == pytest.approx(104 * 6 / 60)
    assert fields["megabytes_in_all"] == pytest.approx(109.02)
    assert "stops falling" in fields["stops_early"]


def test_a_member_that_starts_again_in_between_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    outlook = CostOutlook("ratings", stops_early=True)
    with caplog.at_level(logging.INFO, "verfedgnn.federation"):
        for round in range(8, 30):
            outlook.note_round(round, 111, round, now=float(round))
    assert not caplog.records
