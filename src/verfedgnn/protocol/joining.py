"""The rules of joining, as one question with a reason for an answer: why may this party not take part?"""

from __future__ import annotations

from collections.abc import Mapping

from verfedgnn.config import Config
from verfedgnn.protocol.messages import Hello


def refusal(
    message: Hello,
    config: Config,
    agreement: str | None,
    training: str,
    joined: Mapping[str, Hello],
    digests: Mapping[int, str],
) -> str | None:
    """Why a Hello is not accepted, with the remedy; None if it is.

    `joined` are the Hellos of those who have joined so far (for a party that comes back, also its own first one), `digests` the
    hashes of the public parameters at this training's validations.
    """
    if message.config != config.fingerprint():
        return "its configuration differs from the shared one; take over the coordinator's federation file"
    if message.agreement != agreement:
        return "its federation file (roster, certificates or rules) is not the coordinator's; fetch the current one"
    if message.training not in (None, training):
        return f"its checkpoint belongs to training {message.training}, this one is {training}; start it with another --out"
    known = digests.get(message.round)
    if message.digest is not None and known is not None and message.digest != known:
        return f"its public parameters of round {message.round} are not this training's; start it with another --out"
    if (message.mask_key is None) == config.masking:
        return "its key for masks is missing or not asked for"
    if not message.scale[0] <= message.scale[1]:
        return "its rating scale is upside down"
    before = joined.get(message.party)
    if before is not None and _facts(before) != _facts(message):
        return (
            f"it came with {before.users:,} users, {before.items:,} items and {before.ratings:,} training ratings, and now has "
            f"{message.users:,}, {message.items:,} and {message.ratings:,}; go back to that data or begin a new training"
        )
    for name, other in joined.items():
        if other.users != message.users:
            return f"it has {message.users:,} common users, {name} has {other.users:,}; align the users again"
        if other.alignment != message.alignment:
            return f"its users are aligned otherwise than those of {name}; align the users again"
    return None


def _facts(hello: Hello) -> tuple[object, ...]:
    return hello.users, hello.items, hello.ratings, tuple(hello.scale)
