"""The parties of a training: which may join, which are present, and which are slow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from verfedgnn.config import Config
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


def refusal(
    message: Hello,
    config: Config,
    agreement: str | None,
    training: str,
    joined: Mapping[str, Hello],
    digests: Mapping[int, str],
    *,
    replied: int = 0,
) -> str | None:
    """Return why a Hello is refused, with the remedy; None if it is accepted.

    `replied` is the last round of this training that the party has replied to. `joined` holds the last Hello of every party
    that joined before, including one that comes back. `digests` holds the hashes of the public parameters at this training's
    validations, by round.
    """
    if message.config != config.digest():
        return "its configuration differs from the shared one; copy the coordinator's federation file"
    if message.agreement != agreement:
        return "its federation file (roster, certificates or rules) is not the coordinator's; fetch the current one"
    if message.training not in (None, training):
        return f"its checkpoint belongs to training {message.training}, this one is {training}; start it with another --out"
    if message.training is None and replied:
        return "it has taken part in this training, and its run folder does not know that; use its previous --out"
    if message.released is not None and message.released < replied:
        return (
            f"it has sent round {replied}, and its run folder ends with round {message.released}: the folder is a copy or "
            "an old backup, and the party went on elsewhere; use the newest one"
        )
    known = digests.get(message.round)
    if message.digest is not None and known is not None and message.digest != known:
        return f"its public parameters of round {message.round} are not this training's; start it with another --out"
    if (message.mask_key is None) == config.masking:
        return "its key for masks is missing, or the configuration has no masks; use the coordinator's configuration"
    if not message.scale[0] <= message.scale[1]:
        return "its rating scale is upside down: the lowest rating is above the highest; check its ratings"
    before = joined.get(message.party)
    if before is not None and _facts(before) != _facts(message):
        return (
            f"it first joined with {before.users:,} users, {before.items:,} items and {before.ratings:,} training ratings, "
            f"and now has {message.users:,}, {message.items:,} and {message.ratings:,}; go back to that data or begin a new training"
        )
    for name, other in joined.items():
        if other.users != message.users:
            return f"it has {message.users:,} common users, {name} has {other.users:,}; align the users again"
        if other.alignment != message.alignment:
            return f"its users are aligned differently from those of {name}; align the users again"
    return None


def _facts(hello: Hello) -> tuple[object, ...]:
    return hello.users, hello.items, hello.ratings, tuple(hello.scale)
