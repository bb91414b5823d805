"""The rules of joining a training: why a party may not join."""

from __future__ import annotations

from collections.abc import Mapping

from verfedgnn.config import Config
from verfedgnn.protocol.wire.messages import Hello


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
    if any(row >= message.users for row in message.forgotten):
        return "it asks to forget rows that no user has; start it with the run folder of this federation"
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
    return hello.users, hello.items, hello.ratings, tuple(hello.scale), tuple(hello.forgotten)
