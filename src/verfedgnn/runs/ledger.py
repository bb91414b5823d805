"""The ledger of communication: the number and the encoded bytes of all messages."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

Direction = Literal["up", "down"]
_Key = tuple[str, Direction, str]


class Ledger:
    """Counts of messages and encoded bytes by kind, direction (up: to the coordinator) and party."""

    def __init__(self) -> None:
        self.messages: Counter[_Key] = Counter()
        self.bytes: Counter[_Key] = Counter()

    def record(self, kind: str, direction: Direction, party: str, size: int) -> None:
        """Record one message of `size` encoded bytes."""
        self.messages[kind, direction, party] += 1
        self.bytes[kind, direction, party] += size

    def total(
        self, direction: Direction | None = None, *, kind: str | None = None, party: str | None = None
    ) -> int:
        """Return the bytes of all messages that match the given direction, kind and party."""
        return sum(
            size
            for (k, d, p), size in self.bytes.items()
            if direction in (None, d) and kind in (None, k) and party in (None, p)
        )

    def joined(self, other: Ledger) -> Ledger:
        """Return a ledger with the messages of both."""
        both = Ledger()
        both.messages = self.messages + other.messages
        both.bytes = self.bytes + other.bytes
        return both

    def to_dict(self) -> dict[str, Any]:
        """Return the content of ledger.json: totals, and one row per kind, direction and party."""
        rows = [
            {"kind": k, "direction": d, "party": p, "messages": self.messages[k, d, p], "bytes": size}
            for (k, d, p), size in sorted(self.bytes.items())
        ]
        return {"up": self.total("up"), "down": self.total("down"), "rows": rows}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Ledger:
        """Restore a ledger from the result of `to_dict`."""
        ledger = cls()
        for row in data["rows"]:
            key = (row["kind"], row["direction"], row["party"])
            ledger.messages[key] = row["messages"]
            ledger.bytes[key] = row["bytes"]
        return ledger
