"""The parties of a training: which are present, and which are slow."""

from __future__ import annotations

from collections.abc import Sequence

from verfedgnn.protocol.wire.messages import Hello


class Membership:
    """The parties of a training, in the order that fixes every sum. A round needs `quorum` of them."""

    def __init__(self, names: Sequence[str], quorum: int) -> None:
        self.names = list(names)
        self.quorum = quorum
        self.hellos: dict[str, Hello] = {}
        """The last Hello of every party that ever joined."""
        self.present: set[str] = set()
        """Parties that were welcomed and not lost since."""
        self.slow: set[str] = set()
        """Connected parties that missed a trip; their late reply brings them back."""

    @property
    def complete(self) -> bool:
        """Whether every party has joined at least once."""
        return len(self.hellos) == len(self.names)

    @property
    def enough(self) -> bool:
        """Whether enough parties are present for a round."""
        return self.complete and len(self.present) >= self.quorum

    @property
    def here(self) -> list[int]:
        """Indices of the parties that are present."""
        return [i for i, name in enumerate(self.names) if name in self.present]

    @property
    def missing(self) -> list[str]:
        """Names of the parties that are not present."""
        return [name for name in self.names if name not in self.present]

    def join(self, hello: Hello) -> None:
        """Remember an accepted Hello; the party is present once it is welcomed."""
        self.hellos[hello.party] = hello

    def lose(self, name: str, *, slow: bool) -> None:
        """Mark a party as gone, or as slow."""
        self.present.discard(name)
        self.slow.discard(name)
        if slow:
            self.slow.add(name)

    def bring_back(self, name: str) -> bool:
        """Mark a slow party as present; return whether it was slow."""
        if name not in self.slow:
            return False
        self.slow.discard(name)
        self.present.add(name)
        return True
