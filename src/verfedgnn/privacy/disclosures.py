"""Every field of a message that a party sends where single ratings are protected, and how it is protected.

`metrics.json` lists them. A test compares the table with the messages, so that a new field must be classified.
"""

from __future__ import annotations

from verfedgnn.config import Config

DECLARED = "declared: the party states it, and it does not depend on ratings"
AGREED = "public: a name or hash of the agreement, the configuration or the alignment"
RANDOM = "random: it depends on no data"
PUBLIC = "computed from public values: what the coordinator sent, and sums that were released before"
GRADIENT = "Skellam noise under masks, accounted as user gradients"
VALIDATION = "noise, accounted as validation errors and counts"
ABSENT = "not sent: exchange.mode is off"
CONSTANT = "constant: 0"
USERS = "not protected: the users of the party, aligned before training"
REASON = "text of an error, without ratings"

SENT_BY_PARTIES: dict[str, dict[str, str]] = {
    "Hello": {
        "party": DECLARED,
        "users": USERS,
        "items": DECLARED,
        "ratings": CONSTANT,
        "scale": DECLARED,
        "config": AGREED,
        "stay": RANDOM,
        "agreement": AGREED,
        "alignment": AGREED,
        "training": AGREED,
        "round": PUBLIC,
        "digest": PUBLIC,
        "released": PUBLIC,
        "lost": PUBLIC,
        "mask_key": RANDOM,
        "mask_signature": RANDOM,
    },
    "RoundReply": {
        "round": PUBLIC,
        "trip": PUBLIC,
        "attempt": PUBLIC,
        "gradient": GRADIENT,
        "neighbourhoods": ABSENT,
        "error": VALIDATION,
        "count": VALIDATION,
        "digest": PUBLIC,
    },
    "MaskShares": {
        "round": PUBLIC,
        "trip": PUBLIC,
        "attempt": PUBLIC,
        "request": RANDOM,
        "key": RANDOM,
        "sealed": RANDOM,
        "committed": PUBLIC,
    },
    "ListSignature": {"round": PUBLIC, "trip": PUBLIC, "attempt": PUBLIC, "signature": PUBLIC},
    "Unmask": {"round": PUBLIC, "trip": PUBLIC, "attempt": PUBLIC, "shares": RANDOM},
    "Finished": {"digest": PUBLIC},
    "Refused": {"reason": REASON},
    "AlignHello": {
        "party": DECLARED,
        "agreement": AGREED,
        "users": USERS,
        "seal_key": RANDOM,
        "seal_signature": RANDOM,
    },
    "Sealed": {"session": RANDOM, "peer": PUBLIC, "data": USERS},
    "Pseudonyms": {"session": RANDOM, "values": USERS},
    "Aligned": {"session": RANDOM, "users": USERS},
}
"""Protection of each field, by message."""

SENT_BY_COORDINATOR = frozenset(
    {
        "Welcome",
        "Waiting",
        "ShareRequest",
        "TripShares",
        "RoundStart",
        "Survivors",
        "Finish",
        "AlignStart",
        "UserRows",
    }
)
"""Messages that the coordinator computes from what the parties sent. (Both sides send `Refused`.)"""


def list_disclosures(config: Config) -> list[dict[str, str]]:
    """Return what leaves a party and by which mechanism; nothing where single ratings are not protected."""
    if config.gradients.mechanism != "skellam":
        return []
    return [
        {"message": message, "field": field, "mechanism": mechanism}
        for message, fields in SENT_BY_PARTIES.items()
        for field, mechanism in fields.items()
    ]
