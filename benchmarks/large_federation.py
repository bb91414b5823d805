"""Memory and time of what grows with the users: Welcomes, checkpoints, and a party's rounds.

    python benchmarks/large_federation.py carry --users 1000000 4000000   # Welcomes and checkpoints, before and after
    python benchmarks/large_federation.py slopes                          # memory a user, rating and item of a party

Every case is a process of its own. Memory is the peak above what the process had before the case. "In one piece" is how messages
and checkpoints were made before: the library of safetensors joins all arrays to one piece, and a message is one frame.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from overlap_numbers import answer_rounds, coordinate, store
from verfedgnn.config import Config
from verfedgnn.core.process_memory import keep_freed_memory
from verfedgnn.federation.transport.frames import FrameJoiner, cut_message, size_of
from verfedgnn.gnn.model import Model
from verfedgnn.protocol.checkpoint_state import CheckpointState
from verfedgnn.protocol.round.replica import Replica
from verfedgnn.protocol.wire.messages import Welcome, copied_state, decode, encode_parts
from verfedgnn.research.bench.synthetic_party import made_party
from verfedgnn.runs.checkpoint_slots import CheckpointSlots

RECORDS = Path(__file__).parent.parent / "results" / "scale" / "large_federation.json"
DIM = 32

Case = Callable[["Setting"], dict[str, float]]


class Setting:
    """A coordinator's replica of preset best without its second model."""

    def __init__(self, users: int, folder: Path) -> None:
        self.folder = folder
        self.config = Config.preset("best", raters=0, dim=DIM)
        self.model = Model(self.config.model, users)
        self.replica = self.make_replica()

    def make_replica(self) -> Replica:
        """Return a replica without a stop at random numbers, which take long to draw."""
        parameters, accumulator = torch.full((2, self.model.size), 0.5)
        return Replica(self.config, self.model, [2000] * 10, 10**6, parameters, accumulator, 1)

    def welcome(self, index: int) -> Welcome:
        """Return the Welcome for a party."""
        about = {
            "items": [2000] * 10,
            "stay": "s",
            "training": "t",
            "config": "c",
            "ratings": 1,
            "typical": 3.0,
            "digest": "d",
        }
        return Welcome(index=index, round=1, **about, **self.replica.full_copy())

    def state(self) -> CheckpointState:
        """Return the coordinator's state between two rounds, without the updates."""
        return CheckpointState({**self.replica.arrays(), "best": self.replica.served.numpy()})


def join_in_one_piece(message: Welcome) -> bytes:
    import safetensors.numpy

    body = safetensors.numpy.save(
        {name: np.asarray(values) for name, values in copied_state(message).items()}
    )
    return b"".join((bytes(100), body))


def send_in_one_piece(setting: Setting) -> dict[str, float]:
    about = {
        "items": [1],
        "stay": "s",
        "training": "t",
        "config": "c",
        "ratings": 1,
        "typical": 3.0,
        "digest": "d",
        "round": 1,
    }
    data = join_in_one_piece(Welcome(index=0, **about, **setting.replica.arrays()))
    return {"bytes": len(data)}


def receive_in_one_piece(setting: Setting) -> dict[str, float]:
    import safetensors.numpy

    file = setting.folder / "welcome"
    frame = bytearray(file.read_bytes())
    payload = frame[16:]
    data = bytes(payload)
    del frame, payload
    arrays = safetensors.numpy.load(bytes(data[84:]))
    setting.replica.load(arrays, 1)
    return {}


def send_in_frames(setting: Setting, parties: int = 1) -> dict[str, float]:
    waiting = [encode_parts(setting.welcome(index)) for index in range(parties)]
    largest = max(len(frame) for message in waiting[:1] for frame in cut_message(message))
    return {"bytes": size_of(waiting[0]), "largest_frame": largest}


def send_to_ten(setting: Setting) -> dict[str, float]:
    return send_in_frames(setting, 10)


def receive_in_frames(setting: Setting) -> dict[str, float]:
    joiner = FrameJoiner(1 << 40)
    data = None
    with (setting.folder / "frames").open("rb") as file:
        while data is None:
            size = int.from_bytes(file.read(8), "little")
            data = joiner.take("server", bytearray(file.read(size)))
    message = decode(data)
    assert isinstance(message, Welcome)
    setting.replica.load(copied_state(message), 1)
    return {}


def write_in_one_piece(setting: Setting) -> dict[str, float]:
    import hashlib

    import safetensors.numpy

    arrays = {name: np.ascontiguousarray(values) for name, values in setting.state().arrays.items()}
    digest = hashlib.sha256()
    for values in arrays.values():
        digest.update(values.data)
    data = safetensors.numpy.save(arrays, {"sha256": digest.hexdigest()})
    with (setting.folder / "whole").open("wb") as file:
        file.write(data)
    return {"bytes": len(data)}


def read_in_one_piece(setting: Setting) -> dict[str, float]:
    import hashlib

    import safetensors.numpy

    arrays = safetensors.numpy.load((setting.folder / "whole").read_bytes())
    digest = hashlib.sha256()
    for values in arrays.values():
        digest.update(values.data)
    setting.replica.load(arrays, 1)
    return {"best": float(torch.from_numpy(np.array(arrays["best"]))[0])}


def write_in_parts(setting: Setting) -> dict[str, float]:
    CheckpointSlots(setting.folder / "slots", durable=False).write(1, setting.state(), {})
    return {}


def read_in_parts(setting: Setting) -> dict[str, float]:
    found = CheckpointSlots(setting.folder / "slots").read()
    assert found is not None
    setting.replica.load(found.state.arrays, 1)
    return {"best": float(torch.from_numpy(found.state.arrays["best"])[0])}


CASES: dict[str, Case] = {
    "send, one piece": send_in_one_piece,
    "send, frames": send_in_frames,
    "send to ten, frames": send_to_ten,
    "receive, one piece": receive_in_one_piece,
    "receive, frames": receive_in_frames,
    "write, one piece": write_in_one_piece,
    "write, parts": write_in_parts,
    "read, one piece": read_in_one_piece,
    "read, parts": read_in_parts,
}
"""Cases by name: a Welcome at the coordinator and at a party, and a checkpoint of the coordinator."""


def read_status(field: str) -> int:
    """Return a field of this process's memory in bytes."""
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


def run_case(name: str, users: int, folder: Path) -> dict[str, float]:
    """Return peak memory and seconds of a case in this process."""
    torch.set_num_threads(1)
    setting = Setting(users, folder)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins again
    before = read_status("VmRSS")
    began = time.perf_counter()
    found = CASES[name](setting)
    seconds = time.perf_counter() - began
    return {"memory": read_status("VmHWM") - before, "seconds": seconds, **found}


def write_inputs(users: int, folder: Path) -> None:
    """Write the messages that the receiving cases read."""
    setting = Setting(users, folder)
    message = encode_parts(setting.welcome(0))
    with (folder / "frames").open("wb") as file:
        for frame in cut_message(message):
            file.write(len(frame).to_bytes(8, "little"))
            file.write(frame)
    del message
    (folder / "welcome").write_bytes(join_in_one_piece(setting.welcome(0)))


def carry(users: int) -> dict[str, Any]:
    """Return memory and seconds of all cases, each in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        get = [sys.executable, __file__, "case", "--folder", folder, "--users", str(users), "--name"]
        subprocess.run([*get, "inputs"], check=True)
        found = {}
        for name in CASES:
            text = subprocess.run([*get, name], check=True, capture_output=True, text=True).stdout
            found[name] = json.loads(text)
            print(f"{users:,} users: {name}: {text.strip()}", flush=True)
    return {
        "users": users,
        "dim": DIM,
        "copy": 3 * 4 * Model(Config.preset("best", raters=0).model, users).size,
        **found,
    }


BASE = {"users": 100_000, "ratings": 400_000, "items": 2_000, "dim": 32, "raters": 0}
STEPS = [
    {},
    {"raters": 64},
    {"users": 200_000},
    {"raters": 64, "users": 200_000},
    {"ratings": 800_000},
    {"raters": 64, "ratings": 800_000},
    {"dim": 16},
]


def measure_party(sizes: dict[str, int]) -> dict[str, Any]:
    """Return the memory of one of three parties without masks, and its bytes a round; it is a process of its own."""
    config = Config.preset(
        "best",
        epochs=10**6,
        evaluate_every=10**6,
        patience=0,
        lists=False,
        dim=sizes["dim"],
        raters=sizes["raters"],
    ).with_values({"masking": False, "exchange.mode": "exact"})
    inputs = [
        made_party(f"party-{n}", sizes["users"], 3 * sizes["items"], 3 * sizes["ratings"], 3, seed=n)
        for n in range(3)
    ]
    context = get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=answer_rounds, args=(there,), daemon=True)
    process.start()
    there.close()
    with tempfile.TemporaryDirectory() as folder:
        here.send((store(inputs[0], Path(folder)), config))
        ledger, times = coordinate(here, inputs, config)
    here.send(None)
    figures = here.recv()
    process.join(30)
    rounds = config.exchange.every
    found = {way: ledger.total(way) / 3 / rounds for way in ("up", "down")}
    return {
        **sizes,
        "train": len(inputs[0].train),
        "party": figures,
        "bytes": found,
        "coordinator_cpu": times["cpu"],
    }


def main() -> None:
    """Measure what the command line asks for, and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["carry", "slopes", "case"])
    parser.add_argument("--users", type=int, nargs="+", default=[1_000_000, 4_000_000])
    parser.add_argument("--name", default="")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    keep_freed_memory()
    if options.what == "case":
        if options.name == "inputs":
            write_inputs(options.users[0], options.folder)
        else:
            print(json.dumps(run_case(options.name, options.users[0], options.folder)))
        return
    records = json.loads(RECORDS.read_text("utf-8")) if RECORDS.is_file() else {}
    if options.what == "carry":
        records["carry"] = [carry(users) for users in options.users]
    else:
        records["slopes"] = [measure_party(BASE | step) for step in STEPS]
        for row in records["slopes"]:
            print(json.dumps(row), flush=True)
    RECORDS.write_text(json.dumps(records, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
