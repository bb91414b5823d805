"""The messages of the protocol. docs/protocol.md says who sends which and what it tells."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from verfedgnn.protocol.wire.framing import Bytes, Fixed, Floats, Message, decode, encode

__all__ = [
    "Finish",
    "Finished",
    "Hello",
    "Message",
    "Refused",
    "RoundReply",
    "RoundStart",
    "Waiting",
    "Welcome",
    "decode",
    "encode",
]

_KEY = "^[0-9a-f]{64}$"
_SIGNATURE = "^[0-9a-f]{2,200}$"
_MOST = 1 << 40
"""Users, items, ratings: more than anybody has, few enough to compute with."""

Star = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]
"""A rating."""


class Hello(Message):
    """Party to coordinator, on joining: who it is and the sizes that are public by agreement."""

    kind = 1
    party: str = Field(min_length=1, max_length=200)
    users: int = Field(ge=1, le=_MOST)
    """N, the number of common users; the same everywhere."""
    items: int = Field(ge=1, le=_MOST)
    """M_p, shared with all parties (Sec. 3.1)."""
    ratings: int = Field(ge=0, le=_MOST)
    """Training ratings, so that a round's batch can be shared out."""
    scale: tuple[Star, Star]
    """Lowest and highest rating, for the initial values."""
    config: str = Field(max_length=64)
    """Fingerprint of the configuration."""
    stay: str = Field("", max_length=64)
    """Drawn anew for every Hello, and repeated in the Welcome that answers it."""
    agreement: str | None = Field(None, max_length=64)
    """Fingerprint of the federation file: roster, certificates, rules."""
    alignment: str | None = Field(None, max_length=64)
    """Which alignment its rows follow; the same everywhere."""
    training: str | None = Field(None, max_length=64)
    """The training its checkpoint belongs to, when it has one."""
    round: int = Field(0, ge=0, lt=1 << 32)
    """Round of its last validation, when it has one."""
    digest: str | None = Field(None, max_length=64)
    """Hash of its public parameters then."""
    mask_key: str | None = Field(None, pattern=_KEY)
    """Public key of the party's masks, with masking; fresh for every stay."""
    mask_signature: str | None = Field(None, pattern=_SIGNATURE)
    """That key, signed with the party's certificate."""


class Welcome(Message):
    """Coordinator to party: its place, everybody's sizes, a full copy of the public parameters."""

    kind = 2
    arrays: ClassVar = {"parameters": "float32", "accumulator": "float32", "average": "float32"}
    index: int = Field(ge=0)
    items: list[Annotated[int, Field(ge=1, le=_MOST)]] = Field(min_length=1)
    """M_i of all parties, in order."""
    stay: str = Field(max_length=64)
    """Of the Hello that this answers."""
    training: str = Field(max_length=64)
    """Name of this training, drawn at random; a checkpoint of another one is not taken for this."""
    config: str = Field(max_length=64)
    """Fingerprint of the coordinator's configuration; the party checks it too."""
    ratings: int = Field(ge=0, le=_MOST)
    """Training ratings of all parties together."""
    mask_keys: list[str] | None = None
    """Public keys of all parties, in order, with masking; "" for those who have not joined."""
    mask_signatures: list[str] | None = None
    """Their signatures."""
    round: int = Field(ge=0, lt=1 << 32)
    parameters: Floats
    accumulator: Floats
    """State of the optimiser, one value a parameter."""
    average: Floats | None = None
    """Running average of the parameters, where one is kept."""
    digest: str = Field(max_length=64)
    """Hash of the parameters, as the coordinator holds them."""


class RoundStart(Message):
    """Coordinator to party: what the last rounds changed, and what to do now."""

    kind = 3
    arrays: ClassVar = {
        "updates": "any",
        "neighbourhoods": "fixed",
        "parameters": "float32",
        "accumulator": "float32",
        "average": "float32",
    }
    round: int = Field(ge=1, lt=1 << 32)
    trip: int = Field(ge=0, le=16)
    """0 for the training trip of a round, counted down from `exchange.refresh` for exchange-only ones."""
    attempt: int = Field(0, ge=0, le=65535)
    """How often this trip had to be begun anew because a party was lost; each attempt has masks of its own."""
    active: list[int]
    """A_t, the parties that take part; masks are between them."""
    train: bool
    """Compute gradients and send them."""
    exchange: bool
    """Send neighbourhoods."""
    evaluate: bool
    """Send the error on the validation part."""
    best_round: int = Field(ge=0)
    """Round of the best evaluation so far; whoever holds the model of that round keeps it."""
    updates_from: int = Field(ge=0)
    """Round of the first update below."""
    update_parties: list[list[int]]
    """For each update, whose gradients it sums."""
    updates: Bytes | Floats | None = None
    """Summed protected gradients of the parts of users that the updates were about, one after the other."""
    neighbourhood_parties: list[int]
    """Whose neighbourhoods the sum below holds; none without a sum."""
    neighbourhood_trip: tuple[int, int] = (0, 0)
    """Round and trip in which they were sent."""
    neighbourhoods: Fixed | None = None
    """Sum of neighbourhoods (K, q, C) of the round's users, fixed point, unless the party has it already."""
    parameters: Floats | None = None
    """A full copy in place of updates, for a party that missed many."""
    accumulator: Floats | None = None
    average: Floats | None = None
    mask_keys: list[str] | None = None
    """As in Welcome, when a party has joined anew since."""
    mask_signatures: list[str] | None = None


class RoundReply(Message):
    """Party to coordinator: its protected share of the round."""

    kind = 4
    arrays: ClassVar = {"gradient": "any", "neighbourhoods": "fixed"}
    round: int = Field(ge=1, lt=1 << 32)
    trip: int = Field(ge=0, le=16)
    attempt: int = Field(0, ge=0)
    gradient: Bytes | Floats | None = None
    """Protected gradient of the public parameters that the round is about: signs, residues if masked, or real numbers."""
    neighbourhoods: Fixed | None = None
    """Own neighbourhoods (K, q, C) of the round's users, projected or masked, fixed point."""
    error: float | None = Field(None, ge=0, le=1e30, allow_inf_nan=False)
    """When asked: squared errors, summed over the party's validation ratings; or 1 - NDCG@20, summed over its users."""
    count: int | None = Field(None, ge=0, le=_MOST)
    """Number of those ratings, or users."""
    digest: str | None = Field(None, max_length=64)
    """Hash of the party's public parameters, sent with an evaluation."""


class Finish(Message):
    """Coordinator to party: training is over; the public parameters of the best validation, for keeps."""

    kind = 5
    arrays: ClassVar = {"parameters": "float32"}
    round: int = Field(ge=0)
    best_round: int = Field(ge=0)
    """As in RoundStart."""
    parameters: Floats


class Finished(Message):
    """Party to coordinator: it has its model."""

    kind = 6
    digest: str = Field(max_length=64)
    """Hash of the public parameters it keeps."""


class Refused(Message):
    """Either way: why something was not accepted. The sender goes on without the recipient."""

    kind = 7
    reason: str = Field(max_length=500)


class Waiting(Message):
    """Coordinator to party: heard, and who is still missing."""

    kind = 8
    missing: list[str]
    align: bool = False
    """A party came without aligned users: all must align again."""
