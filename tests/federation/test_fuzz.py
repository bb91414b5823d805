"""A short run of the fuzzer; `make fuzz` sends a million messages (results/federation.md)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.mark.usefixtures("warm")
def test_members_take_or_refuse_hostile_messages_in_every_state() -> None:
    """In a process of its own, since the fuzzer forks and watches its memory."""
    command = [sys.executable, "-m", "fuzzer", "--messages", "2000", "--per-state", "20"]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    for state in (
        "coordinator GATHERING",
        "coordinator ROUND",
        "party QUEUED",
        "party JOINED",
        "alignment at a party",
    ):
        assert f"sent to {state}" in done.stdout, done.stdout
