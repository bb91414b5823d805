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
        ("gradient of public parameters", *_gradient(config)),
        ("sums over users' neighbourhoods", *_sums(config, others)),
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


def _gradient(config: Config) -> tuple[str, str]:
    how = {
        "ternary": "quantized to -1, 0, 1",
        "rounded": "rounded to 8 bits",
        "laplace": "with Laplace noise",
        "skellam": "with Skellam noise",
        "none": "exact",
    }[config.gradients.mechanism]
    one = f"only the sum of all parties' ({how})" if config.masking else f"each party's, {how}"
    return one, f"only the sum of all parties' ({how})"


def _sums(config: Config, others: str) -> tuple[str, str]:
    exchange = config.exchange
    if exchange.mode == "off":
        return NOBODY, NOBODY
    if exchange.mode == "exact":
        return "each party's, exact", f"{others}, exact"
    if exchange.mode == "masked":
        return "only the sum of all parties', exact", f"{others}, exact"
    if exchange.mode == "noised":
        noise = f"with noise of {exchange.noise:g}"
        return f"only the sum of all parties', {noise}", f"{others}, {noise}"
    hidden = "projected to fewer rows"
    whose = "only the sum of all parties'" if config.masking else "each party's"
    return f"{whose}, {hidden}", f"{others}, {hidden}"
