"""What the coordinator and other parties see of a party's data during a training (docs/protocol.md lists
every field).
"""

from __future__ import annotations

from verfedgnn.config import Config

NOBODY = "–"
HEADER = ("what a party has", "the coordinator sees", "another party sees")


def who_sees_what(config: Config, parties: int | None = None) -> list[tuple[str, str, str]]:
    """Return rows of (data, what the coordinator sees, what another party sees) for a configuration.

    With the number of `parties`, the rows say over how many others a sum goes.
    """
    count = {None: "", 1: "", 3: "two "}.get(parties, f"{(parties or 0) - 1} ")
    others = "the other party's own" if parties == 2 else f"only the sum of the {count}others'"
    private = config.gradients.mechanism == "skellam"
    return [
        ("ratings, item ids, titles, item embeddings", NOBODY, NOBODY),
        ("gradient of public parameters", *_released(config)),
        *_own_rows(config, others),
        ("validation error and its count", "yes, with noise" if private else "yes, exactly", NOBODY),
        (
            "number of training ratings",
            "no, it is reported as 0" if private else "yes",
            "no" if private else "only the total of all parties",
        ),
        ("number of items, rating scale", "yes, as declared" if private else "yes", "number of items"),
        (
            "which users there are",
            "under pseudonyms, while users are aligned",
            "row numbers of its own users; sums show which of them are elsewhere",
        ),
    ]


def describe_two_parties(config: Config) -> str:
    """Say what two parties can and cannot hide from each other."""
    seen = {
        "ternary": "ternary gradients",
        "rounded": "rounded gradients",
        "none": "exact gradients",
        "laplace": "noised gradients",
        "skellam": "noised gradients",
    }[config.gradients.mechanism]
    if config.exchange.mode != "off":
        seen += f" and {config.exchange.mode} neighbourhoods"
    noise = ", with noise" if _adds_noise(config) or _adds_noise(config.for_parties(2)) else ""
    masks = "; masks hide these only from the coordinator" if config.masking else ""
    return (
        f"Either of two parties can subtract its own part from a sum and see the other's {seen}{noise}{masks}. "
        "Ratings, item ids and item embeddings are never sent."
    )


def _adds_noise(config: Config) -> bool:
    """Return whether parties add noise to what they round."""
    return config.gradients.mechanism == "rounded" and bool(config.gradients.noise)


def _released(config: Config) -> tuple[str, str]:
    """Return who sees what is summed over the parties."""
    how = {
        "ternary": "quantized to -1, 0, 1",
        "rounded": "rounded to 8 bits" + (", with noise" if _adds_noise(config) else ""),
        "laplace": "with Laplace noise",
        "skellam": "with Skellam noise",
        "none": "exact",
    }[config.gradients.mechanism]
    one = f"only the sum of all parties' ({how})" if config.masking else f"each party's, {how}"
    return one, f"only the sum of all parties' ({how})"


def _own_rows(config: Config, others: str) -> list[tuple[str, str, str]]:
    """Return the rows that only some forms of the model have."""
    if config.model.form == "propagation":
        return [("sums over users' neighbourhoods", *_sums(config, others))]
    if config.model.form == "solved":
        released = _released(config)
        counts = ("number of each user's ratings and the sum of what item means leave of them", *released)
        return [counts, ("mean squares of the columns of item embeddings", *released)]
    return []


def _sums(config: Config, others: str) -> tuple[str, str]:
    exchange = config.exchange
    if exchange.mode == "off":
        return NOBODY, NOBODY
    hidden = "exact" if exchange.mode == "exact" else "projected to fewer rows"
    whose = "only the sum of all parties'" if config.masking else "each party's"
    return f"{whose}, {hidden}", f"{others}, {hidden}"
