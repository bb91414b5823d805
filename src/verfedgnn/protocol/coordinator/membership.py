"""Who belongs to a training, who is there now, and whose mask keys each party knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from verfedgnn.protocol.wire.messages import Hello


class Membership:
    """The parties in the order that fixes every sum. `quorum` of them must be there for a round."""

    def __init__(self, names: Sequence[str], quorum: int) -> None:
        self.names, self.quorum = list(names), quorum
        self.hellos: dict[str, Hello] = {}
        """The last Hello of everybody who ever joined."""
        self.present: set[str] = set()
        """Parties that have been welcomed and not been lost since."""
        self.slow: set[str] = set()
        """Parties that are there but let a trip pass; their late reply brings them back."""
        self._changes, self._told = 0, dict.fromkeys(self.names, 0)

    @property
    def complete(self) -> bool:
        """Whether everybody has joined at least once."""
        return len(self.hellos) == len(self.names)

    @property
    def enough(self) -> bool:
        """Whether there are enough for a round."""
        return self.complete and len(self.present) >= self.quorum

    @property
    def here(self) -> list[int]:
        """Who is there, by index."""
        return [i for i, name in enumerate(self.names) if name in self.present]

    @property
    def missing(self) -> list[str]:
        """Who is not there."""
        return [name for name in self.names if name not in self.present]

    def join(self, hello: Hello) -> None:
        """Take an accepted Hello; the party is there once it has been welcomed."""
        self.hellos[hello.party] = hello
        self._changes += 1

    def lose(self, name: str, *, slow: bool) -> None:
        """A party is gone, or merely slow."""
        self.present.discard(name)
        self.slow.discard(name)
        if slow:
            self.slow.add(name)

    def back(self, name: str) -> bool:
        """A slow party was heard of; whether it was one."""
        if name not in self.slow:
            return False
        self.slow.discard(name)
        self.present.add(name)
        return True

    def knowledge(self, name: str) -> int:
        """A number that parties share if they know the same mask keys."""
        return self._told[name]

    def news(self, name: str) -> dict[str, Any]:
        """Everybody's mask keys for a message to `name`, unless it knows them already."""
        if self._told[name] == self._changes:
            return {}
        self._told[name] = self._changes
        hellos = [self.hellos.get(name) for name in self.names]
        return {
            "mask_keys": [(hello and hello.mask_key) or "" for hello in hellos],
            "mask_signatures": [(hello and hello.mask_signature) or "" for hello in hellos],
        }
