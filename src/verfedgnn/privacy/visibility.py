"""What the coordinator and other parties see of a party's data during a training (docs/protocol.md lists
every field).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from verfedgnn.config import Config

NOBODY = "–"
HEADER = ("what a party has", "the coordinator sees", "another party sees")


def who_sees_what(config: Config, parties: int | None = None) -> list[tuple[str, str, str]]:
    """Return rows of (data, what the coordinator sees, what another party sees) for a configuration.

    With the number of `parties`, the rows say over how many others a sum goes.
    """
    count = {None: "", 1: "", 3: "two "}.get(parties, f"{(parties or 0) - 1} ")
    others = "the other party's own" if parties == 2 else f"only the sum of the {count}others'"
    private = config.gradients.protects_ratings
    return [
        ("ratings, item ids, titles, item embeddings", NOBODY, NOBODY),
        ("gradient of public parameters", *_released(config, others, parties or 1)),
        *_own_rows(config, others, parties or 1),
        ("validation error and its count", "yes, with noise" if private else "yes, exactly", NOBODY),
        (
            "number of training ratings",
            "no, it is reported as 0" if private else "yes",
            "no" if private else others,
        ),
        ("number of items, rating scale", "yes, as declared" if private else "yes", "number of items"),
        (
            "which users there are",
            "under pseudonyms, while users are aligned",
            "row numbers of its own users; sums show which of them are elsewhere",
        ),
    ]


def describe_seen(config: Config) -> str:
    """Return what either of two parties sees of the other, such as `rounded gradients, with noise`."""
    seen = f"{config.gradients.named} gradients"
    if config.exchange != "off":
        seen += " and projected neighbourhoods"
    return f"{seen}, with noise" if config.gradients.noisy or config.noise_of(2) else seen


def describe_two_parties(config: Config) -> str:
    """Say what two parties can and cannot hide from each other."""
    masks = "; masks hide these only from the coordinator" if config.masking else ""
    return (
        f"Either of two parties can subtract its own part from a sum and see the other's {describe_seen(config)}{masks}. "
        "Ratings, item ids and item embeddings are never sent."
    )


def _released(config: Config, others: str, parties: int) -> tuple[str, str]:
    """Return who sees what is summed over the parties; with the sum, each party sees that of the `others`, too."""
    from verfedgnn.privacy.protections import protection_of

    how = protection_of(config, parties).shown
    one = f"only the sum of all parties' ({how})" if config.masking else f"each party's, {how}"
    return one, f"{others} ({how})"


def _own_rows(config: Config, others: str, parties: int) -> list[tuple[str, str, str]]:
    """Return the rows that only some forms of the model have."""
    if config.model.solved:
        released = _released(config, others, parties)
        counts = ("number of each user's ratings and the sum of what item means leave of them", *released)
        return [counts, ("mean squares of the columns of item embeddings", *released)]
    if config.model.form != "propagation":
        return []
    sums, how = "sums over users' neighbourhoods", "projected to fewer rows"
    if config.exchange == "off":
        return [(sums, NOBODY, NOBODY)]
    whose = "only the sum of all parties'" if config.masking else "each party's"
    return [(sums, f"{whose}, {how}", f"{others}, {how}")]


# Every field of a message that a party sends where single ratings are protected, and how it is protected.
#
# `metrics.json` lists them. A test compares the table with the messages, so that a new field must be classified.


DECLARED = "declared: the party states it, and it does not depend on ratings"
AGREED = "public: a name or hash of the agreement, the configuration or the alignment"
RANDOM = "random: it depends on no data"
PUBLIC = "computed from public values: what the coordinator sent, and sums that were released before"
GRADIENT = "Skellam noise under masks, accounted as user gradients"
VALIDATION = "noise, accounted as validation errors and counts"
SOFTWARE = "public: the version of the software"
ABSENT = "not sent: exchange is off"
UNSHARED = "not sent: verdicts are shared only where single ratings are not protected"
CONSTANT = "constant: 0"
USERS = "not protected: the users of the party, aligned before training"
REASON = "text of an error, without ratings"

SENT_BY_PARTIES: dict[str, dict[str, str]] = {
    message: {field: how for how, fields in shown.items() for field in fields.split()}
    for message, shown in {
        "About": {SOFTWARE: "version", UNSHARED: "run word gain"},
        "Hello": {
            DECLARED: "party items scale",
            USERS: "users",
            CONSTANT: "ratings",
            AGREED: "config agreement alignment training",
            RANDOM: "stay mask_key mask_signature",
            PUBLIC: "round digest released lost",
        },
        "RoundReply": {
            PUBLIC: "round attempt digest",
            GRADIENT: "gradient",
            ABSENT: "neighbourhoods",
            VALIDATION: "error count",
        },
        "MaskShares": {PUBLIC: "round attempt committed", RANDOM: "request key sealed"},
        "ListSignature": {PUBLIC: "round attempt signature"},
        "Unmask": {PUBLIC: "round attempt", RANDOM: "shares"},
        "Finished": {PUBLIC: "digest"},
        "Refused": {REASON: "reason"},
        "AlignHello": {
            DECLARED: "party",
            AGREED: "agreement",
            USERS: "users",
            RANDOM: "seal_key seal_signature",
        },
        "Sealed": {RANDOM: "session", PUBLIC: "peer", USERS: "data"},
        "Pseudonyms": {RANDOM: "session", USERS: "values"},
        "Aligned": {RANDOM: "session", USERS: "users"},
    }.items()
}
"""Protection of each field, by message."""


def list_disclosures(config: Config) -> list[dict[str, str]]:
    """Return what leaves a party and by which mechanism; nothing where single ratings are not protected."""
    if not config.gradients.protects_ratings:
        return []
    return [
        {"message": message, "field": field, "mechanism": mechanism}
        for message, fields in SENT_BY_PARTIES.items()
        for field, mechanism in fields.items()
    ]
