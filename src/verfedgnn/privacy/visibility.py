"""Who sees what of a party during a training, by configuration: what a reviewer asks first (docs/protocol.md has every field)."""

from __future__ import annotations

from verfedgnn.config import Config

NOBODY = "–"
HEADER = ("what a party has", "the coordinator sees", "another party sees")


def who_sees_what(config: Config) -> list[tuple[str, str, str]]:
    """Rows of (what, the coordinator, another party)."""
    private = config.gradients.mechanism == "skellam"
    return [
        ("ratings, item ids, titles, item embeddings", NOBODY, NOBODY),
        ("gradient of public parameters", *_gradient(config)),
        ("sums over users' neighbourhoods", *_sums(config)),
        ("validation error and its count", "yes, with noise" if private else "yes, as they are", NOBODY),
        (
            "number of training ratings",
            "no: 0 is said" if private else "yes",
            "no" if private else "all parties' together",
        ),
        ("number of items, rating scale", "yes", "number of items"),
        (
            "which users there are",
            "under pseudonyms, while users are aligned",
            "the users all parties have in common",
        ),
    ]


def _gradient(config: Config) -> tuple[str, str]:
    how = {
        "ternary": "quantized to -1, 0, 1",
        "laplace": "with Laplace noise",
        "skellam": "with Skellam noise",
        "none": "as it is",
    }[config.gradients.mechanism]
    one = f"only the sum of all parties' ({how})" if config.masking else f"each party's, {how}"
    return one, f"only the sum of all parties' ({how})"


def _sums(config: Config) -> tuple[str, str]:
    exchange = config.exchange
    if exchange.mode == "off":
        return NOBODY, NOBODY
    if exchange.mode == "exact":
        return "each party's, as they are", "the sum of the others'"
    if exchange.mode == "masked":
        return "only the sum of all parties', exact", "only the sum of the others', exact"
    if exchange.mode == "noised":
        noise = f"with noise of {exchange.noise:g}"
        return f"only the sum of all parties', {noise}", f"only the sum of the others', {noise}"
    hidden = "projected to fewer rows"
    whose = "only the sum of all parties'" if config.masking else "each party's"
    return f"{whose}, {hidden}", f"only the sum of the others', {hidden}"
