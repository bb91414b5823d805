"""Measure what the masks of one attempt cost a party and the coordinator, in milliseconds and bytes, with and without dropouts.

    python benchmarks/mask_costs.py [--parties 10 100] [--size 50000] [--repeats 5]

The comparison is with pairwise masks alone, whose secrets are derived once a stay and which do not survive a dropout. Both are
measured in the same run, on one thread, for a gradient of `size` bytes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import verfedgnn as vf
from verfedgnn.privacy.masking import GRADIENT, add_masks, remove_masks
from verfedgnn.protocol.masks import ListCommitments, MaskedRound, PartyMasks
from verfedgnn.protocol.messages import Hello, MaskShares, RoundStart, Unmask, encode
from verfedgnn.protocol.party_setup import Policy

CONFIG = vf.Config.preset("paper", masking=True, mode="off")
CONTEXT = b"context"


class Clock:
    """Milliseconds spent in named steps, and the result of the last step."""

    def __init__(self) -> None:
        self.spent: dict[str, list[float]] = {}

    def time(self, name: str, work: Callable[..., Any], *arguments: Any) -> Any:
        """Return the result of `work`, and note the CPU time that it took."""
        began = time.process_time()
        result = work(*arguments)
        self.spent.setdefault(name, []).append(1e3 * (time.process_time() - began))
        return result


def pairwise_only(count: int, values: Any) -> Any:
    """Mask values for `count` other parties with secrets that were derived before."""
    total = values.view(np.uint8).copy()
    for other in range(count):
        key = sha256(b"stream" + bytes([other] * 32) + CONTEXT).digest()
        stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(values.nbytes))
        total = total + np.frombuffer(stream, np.uint8)
    return total


def mask(party: PartyMasks, start: RoundStart, values: Any) -> Any:
    """Add a party's masks of a round."""
    return add_masks(values, party.streams(start, CONTEXT), GRADIENT)


def remove(attempt: MaskedRound, total: Any) -> Any:
    """Remove the masks from a sum."""
    return remove_masks(total, attempt.streams(CONTEXT), GRADIENT)


def measure(count: int, size: int, lost: int, repeats: int) -> dict[str, float]:
    """Return the cost of one round: medians in milliseconds, and bytes for one party."""
    values = np.random.default_rng(0).integers(-1, 2, size).astype(np.int8)
    parties = [PartyMasks(f"party-{i}", CONFIG, Policy(), ListCommitments()) for i in range(count)]
    for index, party in enumerate(parties):
        party.join("training", index, count)
    clock = Clock()
    sizes: dict[str, int] = {}
    hellos = [
        Hello(party=p.name, users=1, items=1, ratings=1, scale=(1, 5), config="", mask_key=p.key)
        for p in parties
    ]
    for round in range(1, repeats + 1):
        attempt = MaskedRound((round, 0), range(count))
        request = attempt.share_request(hellos)
        for index, party in enumerate(parties):
            shares = clock.time("share", party.handle, request)
            assert isinstance(shares, MaskShares)
            sizes["up"] = len(encode(shares))
            attempt.take_shares(index, shares)
        start = RoundStart(
            round=round, active=attempt.active, evaluate=False, best_round=0,
            updates_from=1, update_parties=[], neighbourhood_parties=[],
        )  # fmt: skip
        attempt.survivors = attempt.active[lost:]
        total = np.zeros(size, np.int8)
        for index, party in enumerate(parties):
            message = attempt.round_shares(index)
            sizes["down"] = len(encode(message))
            clock.time("open", party.handle, message)
            masked = clock.time("mask", mask, party, start, values)
            clock.time("pairwise", pairwise_only, count - 1, values)
            if index in attempt.survivors:
                total += masked
        survivors = attempt.survivor_message()
        sizes["survivors"] = len(encode(survivors))
        for index in attempt.survivors:
            signed = survivors
            if lost:
                signed = survivors.model_copy(update={"signatures": ["00" * 72] * len(attempt.survivors)})
            answer = parties[index].handle(signed)
            assert isinstance(answer, Unmask)
            sizes["unmask"] = len(encode(answer))
            attempt.take_reveal(index, answer)
        clock.time("recover", attempt.recover)
        unmasked = clock.time("remove", remove, attempt, total)
        expected = sum([values] * (count - lost), np.zeros(size, np.int8))
        np.testing.assert_array_equal(unmasked, expected)
    found = {name: round_to(statistics.median(spent)) for name, spent in clock.spent.items()}
    return found | {
        "up_bytes": sizes["up"] + sizes["unmask"],
        "down_bytes": sizes["down"] + sizes["survivors"],
    }


def round_to(value: float) -> float:
    return float(f"{value:.3g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parties", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--size", type=int, default=50_000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    for count in options.parties:
        for lost in (0, count // 5):
            figures = measure(count, options.size, lost, options.repeats)
            print(json.dumps({"parties": count, "lost": lost} | figures))


if __name__ == "__main__":
    main()
