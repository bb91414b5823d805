"""Counts of released gradients and neighbourhoods, which privacy accounting composes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from verfedgnn.protocol.messages import RoundReply


@dataclass
class ReleaseCounts:
    """The number of releases of one party so far."""

    gradients: int = 0
    neighbourhoods: int = 0

    def count(self, reply: RoundReply) -> None:
        """Count one reply of a round."""
        self.gradients += reply.gradient is not None
        self.neighbourhoods += reply.neighbourhoods is not None

    def to_dict(self) -> dict[str, int]:
        """Return the counts for a checkpoint."""
        return asdict(self)

    @classmethod
    def most(cls, counts: Iterable[ReleaseCounts]) -> ReleaseCounts:
        """Return the largest count of each kind over several parties."""
        counts = list(counts)
        return cls(max(c.gradients for c in counts), max(c.neighbourhoods for c in counts))
