"""The clock that tests of federations set forward."""

from __future__ import annotations

import pytest

from hub import Clock
from verfedgnn.federation import coordinator_stage


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(coordinator_stage, "time", clock)
    return clock
