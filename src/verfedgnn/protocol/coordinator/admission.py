"""The rules of taking part, as questions with a reason for an answer: why may a party not join, why is a reply not taken?"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from verfedgnn.config import Config
from verfedgnn.protocol.round.aggregation import fixed_type, gradient_type, neighbourhood_shape
from verfedgnn.protocol.round.neighbourhood_exchange import fewest
from verfedgnn.protocol.round.user_blocks import Part
from verfedgnn.protocol.wire.messages import Hello, RoundReply, RoundStart


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


def too_few(config: Config, least: int, parties: int) -> str | None:
    """Why a federation of `parties`, of which `least` may be in a sum, cannot have what is configured; None if it can."""
    if config.masking and least < 2:
        return "masking hides nothing with a single active party; use more parties or masking=false"
    wanted = fewest(config, parties)
    if least >= wanted:
        return None
    remedy = (
        "two parties use --set exchange.mode=projected, or --set exchange.mode=noised --set exchange.noise=0.05 "
        "--set exchange.row_clip=0.5, or off"
        if parties == 2
        else "use participation = 1 and --min-parties for all (three or more), exchange.mode = projected, off, or "
        "noised (with exchange.noise and .row_clip), or --set unprotected=sums"
    )
    return (
        f"exchange.mode = {config.exchange.mode} needs {wanted} parties in every sum, here may be {least}: exact sums over "
        f"fewer, or over changing sets, show a single party's matrix; {remedy}"
    )


def misfit(
    reply: RoundReply, start: RoundStart, config: Config, part: Part, parties: int, digest: Callable[[], str]
) -> str | None:
    """Why a reply does not fit what was asked about users of a `part`; None if it does. `digest` hashes the public parameters."""
    if (reply.round, reply.trip, reply.attempt) != (start.round, start.trip, start.attempt):
        return f"a reply to round {reply.round}, but round {start.round} is open"
    if (reply.gradient is None) == start.train or (reply.neighbourhoods is None) == start.exchange:
        return "the reply does not hold what was asked for"
    if reply.gradient is not None:
        if reply.gradient.shape != (part.model.size,) or reply.gradient.dtype != gradient_type(
            config, parties
        ):
            return f"a gradient of shape {reply.gradient.shape} and type {reply.gradient.dtype}"
        ternary = config.gradients.mechanism == "ternary" and not config.masking
        if (
            ternary and not ((reply.gradient >= -1) & (reply.gradient <= 1)).all()
        ):  # refused while it is known whose it is
            return "a gradient with values that are not ternary"
    if reply.neighbourhoods is not None:
        shape, found = reply.neighbourhoods.shape, reply.neighbourhoods.dtype
        if shape != neighbourhood_shape(config, part) or found != fixed_type(config):
            return f"neighbourhoods of shape {shape} and type {found}"
    if start.evaluate:
        if reply.error is None or reply.count is None:
            return "the reply holds no validation error"
        if reply.digest != digest():
            return "its public parameters differ from the coordinator's; it must rejoin"
    return None


def _facts(hello: Hello) -> tuple[object, ...]:
    return hello.users, hello.items, hello.ratings, tuple(hello.scale)
