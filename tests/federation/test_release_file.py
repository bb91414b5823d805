"""The ledger of releases on disk: kills, torn lines, lost values, and what a party shows of it."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

import verfedgnn as vf
from hub import SERVER, Killed, Trial
from verfedgnn.core.errors import RunError
from verfedgnn.federation.stores import LEDGER, open_ledger
from verfedgnn.protocol.messages import RoundReply, decode
from verfedgnn.protocol.release_ledger import GRADIENT, VALIDATION, ReleaseLedger
from verfedgnn.runs.run_folder import LAST_RELEASE

PRIVATE = vf.Config.preset("private", epochs=6, evaluate_every=3)


def opened(folder: Path) -> ReleaseLedger:
    ledger = open_ledger(folder, PRIVATE)
    ledger.check_training("t", 6)
    return ledger


def test_a_restarted_party_does_not_forget(tmp_path: Path) -> None:
    """The ledger is on disk before a release leaves: the same values come back, and spent epsilon stays spent."""
    first = opened(tmp_path)
    values = {GRADIENT: np.arange(5, dtype=np.int32), VALIDATION: np.array([3.5, 2.0])}
    first.release(1, [0, 1, 2], {GRADIENT: np.ones(5, np.int32)})
    first.release(2, [0, 1, 2], values)
    again = opened(tmp_path)
    assert again.entries == first.entries
    assert again.epsilon == first.epsilon > 0
    other = {GRADIENT: np.zeros(5, np.int32), VALIDATION: np.zeros(2)}
    for kind, value in again.release(2, [0, 1, 2], other).items():
        assert np.array_equal(value, values[kind])
    with pytest.raises(vf.ProtocolError, match="asks again for round 1"):
        again.release(1, [0, 1, 2], other)
    assert (tmp_path / LEDGER).stat().st_mode & 0o777 == 0o600


def test_a_torn_line_is_a_release_that_never_left(tmp_path: Path) -> None:
    opened(tmp_path).release(1, [0, 1], {GRADIENT: np.ones(5, np.int32)})
    with (tmp_path / LEDGER).open("ab") as file:
        file.write(b'{"time": "2026-')
    again = opened(tmp_path)
    assert [entry.round for entry in again.entries] == [1]
    again.release(2, [0, 1], {GRADIENT: np.ones(5, np.int32)})
    assert len(opened(tmp_path).entries) == 2


def damage(folder: Path, how: str) -> None:
    """Leave the values of the last releases as a failing disk may leave them."""
    files = sorted((folder / LAST_RELEASE).iterdir())
    for file in files:
        if how == "torn":
            file.write_bytes(file.read_bytes()[:-4])
        elif how == "empty":
            file.write_bytes(b"")
        else:
            file.unlink()


@pytest.mark.parametrize("how", ["empty", "torn", "gone"])
def test_without_the_values_a_release_is_not_made_again(tmp_path: Path, how: str) -> None:
    opened(tmp_path).release(1, [0, 1], {GRADIENT: np.ones(5, np.int32)})
    assert opened(tmp_path).lost == 0
    damage(tmp_path, how)
    again = opened(tmp_path)
    assert again.lost == 1
    with pytest.raises(vf.ProtocolError, match="no longer has the values; the coordinator must abandon"):
        again.release(1, [0, 1], {GRADIENT: np.ones(5, np.int32)})
    again.release(2, [0, 1], {GRADIENT: np.ones(5, np.int32)})
    assert opened(tmp_path).lost == 0


def test_an_older_ledger_is_refused(tmp_path: Path) -> None:
    """Rounds that it does not know of would be released again, with other noise and without being counted."""
    ledger = opened(tmp_path)
    for round in range(1, 5):
        ledger.release(round, [0, 1], {GRADIENT: np.full(5, round, np.int32)})
    file = tmp_path / LEDGER
    lines = file.read_bytes().splitlines(keepends=True)
    for kept in (0, 2):
        file.write_bytes(b"".join(lines[:kept]))
        with pytest.raises(RunError, match=f"tells of 3 releases, .* has {kept}: it is an older copy"):
            opened(tmp_path)
    file.write_bytes(b"".join(lines[:3]))  # as if the power failed before the last line was on disk
    released = opened(tmp_path).release(4, [0, 1], {GRADIENT: np.zeros(5, np.int32)})
    assert released[GRADIENT].tolist() == [4] * 5, "the stored values may have left, so no others do"
    file.write_text("[]\n")
    with pytest.raises(RunError, match="does not know what it has released; start a new training"):
        opened(tmp_path)


def test_a_reply_leaves_when_its_release_is_on_disk(
    tmp_path: Path, small_parties: list[vf.PartyData], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow disk delays the reply, not the promise."""
    name = small_parties[0].name
    file = tmp_path / f"run-{name}" / LEDGER
    flushed: list[int] = []
    really = os.fsync

    def slowly(handle: int) -> None:
        path = os.readlink(f"/proc/self/fd/{handle}")
        size = os.fstat(handle).st_size
        if path == str(file):
            time.sleep(0.02)
        really(handle)
        if path == str(file):
            flushed.append(size)

    def watch(data: bytes) -> bytes:
        if isinstance(decode(data), RoundReply):
            assert flushed[-1] == file.stat().st_size, "the release is not on disk"
        return data

    monkeypatch.setattr(os, "fsync", slowly)
    config = vf.Config.preset("paper", batch=0, epochs=3, evaluate_every=3, masking=True)
    federated = Trial(tmp_path, small_parties, config, alignment="none", min_parties=3)
    federated.run({name: watch})
    assert not federated.errors
    assert len(flushed) == 3


def test_a_killed_party_of_a_federation_releases_every_round_once(
    tmp_path: Path, small_parties: list[vf.PartyData]
) -> None:
    """Killed when its reply of round 4 has been computed but not sent, and with its checkpoint lost: it sends the same."""
    federated = Trial(tmp_path, small_parties, PRIVATE, min_parties=3)
    name = small_parties[0].name
    kills = iter([True])

    def fault(data: bytes) -> bytes:
        message = decode(data)
        if isinstance(message, RoundReply) and message.round == 4 and next(kills, False):
            raise Killed
        return data

    federated.run({name: fault})
    lines = [json.loads(line) for line in (tmp_path / f"run-{name}" / LEDGER).read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert lines[2]["kinds"] == {"gradient": "skellam", "validation": "skellam"}
    spent = [line["epsilon"] for line in lines]
    assert spent == sorted(spent)
    privacy = federated.runs[name].metrics["privacy"]
    assert privacy["spent"] == {"gradient": 6, "neighbourhoods": 0, "validation": 2, "epsilon": spent[-1]}
    assert privacy["gradients"]["composed"]["epsilon"] == spent[-1]
    assert federated.services[name].status()["epsilon_spent"] == spent[-1]


BEST = vf.Config.preset("best", epochs=6, evaluate_every=3, dim=8, lists=False, gate=False)


@pytest.mark.parametrize(("how", "config"), [("empty", PRIVATE), ("torn", BEST)], ids=["private", "best"])
def test_a_round_that_a_party_cannot_repeat_is_abandoned(
    tmp_path: Path, small_parties: list[vf.PartyData], how: str, config: vf.Config
) -> None:
    """A failing disk takes the values of a release, and all parties are required: that round has no update, and all others do."""
    federated = Trial(tmp_path, small_parties, config, alignment="none", min_parties=3)
    name = small_parties[0].name
    folder = tmp_path / f"run-{name}"
    left = {name: 1, SERVER: int(how == "torn")}  # how often each is still killed

    def cut_power(data: bytes) -> bytes:
        message = decode(data)
        if isinstance(message, RoundReply) and message.round == 4 and left[name]:
            left[name] = 0
            damage(folder, how)
            raise Killed
        return data

    def restart(data: bytes) -> bytes:
        if left[SERVER] and not left[name]:
            left[SERVER] = 0
            raise Killed
        return data

    federated.run({name: cut_power, SERVER: restart})
    assert not federated.errors
    assert federated.services[SERVER].stage.record.abandoned == 1
    lines = [json.loads(line) for line in (folder / LEDGER).read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3, 4, 5, 6], "no round is released twice"
    assert len({run.metrics["public"] for run in federated.runs.values()}) == 1


@pytest.mark.parametrize("newer", ["transcript", "checkpoint"])
def test_a_party_does_not_continue_with_an_older_ledger(
    tmp_path: Path, small_parties: list[vf.PartyData], newer: str
) -> None:
    federated = Trial(tmp_path, small_parties, PRIVATE, alignment="none", min_parties=3)
    name = small_parties[0].name
    folder = tmp_path / f"run-{name}"

    def roll_back(data: bytes) -> bytes:
        message = decode(data)
        if isinstance(message, RoundReply) and message.round == 4:
            lines = (folder / LEDGER).read_bytes().splitlines(keepends=True)
            (folder / LEDGER).write_bytes(b"".join(lines[:2]))
            shutil.rmtree(folder / LAST_RELEASE)
            if newer == "transcript":
                shutil.rmtree(folder / "checkpoint")
            else:
                (folder / "transcript.jsonl").unlink()
            federated.stopping = True
            raise Killed
        return data

    federated.run({name: roll_back})
    federated.stopping = False
    federated.threads.clear()
    federated.start(name)
    federated.join()
    (error,) = federated.errors[name]
    assert newer in str(error)
    assert "it is an older copy" in str(error)
