"""Which settings of a configuration may not stand together: what would be unprotected, unbounded, or make no sense."""

from __future__ import annotations

from typing import TYPE_CHECKING

from verfedgnn import plugins
from verfedgnn.config.sections import FRACTION_BITS

if TYPE_CHECKING:
    from verfedgnn.config import Config


def problem(config: Config) -> str | None:
    """Why the settings of a configuration may not stand together, with the remedy; None if they may."""
    gradients, exchange = config.gradients, config.exchange
    if config.model.gnn not in plugins.GNNS:
        plugins.gnn(config.model.gnn, config.model.form)  # which says what is wrong by itself
    if gradients.mechanism == "skellam":
        reason = _skellam_problem(config)
        if reason:
            return reason
    elif gradients.noise_multiplier:
        return (
            f"gradients.noise_multiplier belongs to gradients.mechanism = skellam, not {gradients.mechanism}"
        )
    if gradients.mechanism in ("ternary", "laplace"):
        if gradients.clip is None:
            return f"gradients.clip must be set for {gradients.mechanism}: without it no bound holds"
        if gradients.mechanism == "ternary" and gradients.clip > gradients.r:
            return f"gradients.clip = {gradients.clip} exceeds r = {gradients.r}: |x|/r would not be a probability; raise r"
        if gradients.clip > 0.5 and "clip" not in config.unprotected:
            return (
                f"gradients.clip = {gradients.clip} lets two gradients differ by more than 1 per coordinate, which the "
                "guarantee does not cover; use 0.5 or ask for it with --set unprotected=clip"
            )
    if exchange.mode == "projected" and exchange.block == 1 and "projection" not in config.unprotected:
        return (
            "exchange.block = 1 sends every user's value times a known number; "
            "use 2 or more, or ask for it with --set unprotected=projection"
        )
    if not config.model.estimators and exchange.mode != "none" and "degrees" not in config.unprotected:
        return (
            "model.estimators = false exchanges how many items each user has at each party; "
            "leave it on, or ask for it with --set unprotected=degrees"
        )
    if exchange.mode == "projected" and exchange.ratio < 2 and "projection" not in config.unprotected:
        return (
            f"exchange.ratio = {exchange.ratio} means 2q > N + 1, so Theorem 1 does not hide single values; "
            "use 2 or more, or ask for it with --set unprotected=projection"
        )
    if exchange.mode in ("masked", "noised") and not config.masking:
        return f"exchange.mode = {exchange.mode} is protected by masks; add --set masking=true"
    if exchange.mode == "noised" and (not exchange.noise or exchange.row_clip is None):
        return (
            "exchange.mode = noised needs exchange.noise and exchange.row_clip: the guarantee is their ratio"
        )
    if exchange.noise * 6 * (1 << FRACTION_BITS[exchange.bits]) > 2 ** (exchange.bits - 1):
        return f"exchange.noise = {exchange.noise:g} does not fit into {exchange.bits} bits; use less, or exchange.bits = 32"
    if exchange.mode != "noised" and (exchange.noise or exchange.row_clip is not None):
        return f"exchange.noise and exchange.row_clip belong to exchange.mode = noised, not {exchange.mode}"
    if config.training.gate and config.training.ranks:
        return "training.gate mixes predicted ratings; a ranking has none, set training.gate = false"
    if config.model.form == "messages" and config.model.layers != 1:
        return f"model.form = messages has one layer, not {config.model.layers}; set model.layers = 1"
    if config.model.form == "factors" and exchange.mode != "none":
        return "model.form = factors has no neighbourhoods to exchange; set exchange.mode = none"
    if config.model.generator and (config.model.form != "propagation" or not config.model.estimators):
        return "model.generator needs model.form = propagation and model.estimators"
    if config.model.generator and exchange.mode == "none":
        return "model.generator learns from exchanged neighbourhoods; choose an exchange.mode other than none"
    if exchange.backward and config.model.form != "messages":
        return "exchange.backward trains message embeddings; it needs model.form = messages"
    if exchange.backward and not config.model.estimators:
        return "exchange.backward needs finished neighbourhoods, which exact degrees are not; leave model.estimators on"
    if not config.model.own_messages and config.model.gnn == "gat":
        return "model.own_messages = false leaves GAT's attention nothing to learn from; use gcn or ggnn"
    if not config.model.own_messages and (config.model.form != "messages" or not config.model.estimators):
        return "model.own_messages = false needs model.form = messages and model.estimators"
    if exchange.bits < 32 and not config.model.estimators:
        return f"exchange.bits = {exchange.bits} has no room for exact degrees; use 32, or 64"
    if exchange.bits == 64 and exchange.mode != "exact":
        return f"exchange.bits = 64 belongs to exchange.mode = exact, not {exchange.mode}; use 16 or 32"
    if config.masking and gradients.mechanism not in ("ternary", "skellam"):
        return f"masking needs integers, and {gradients.mechanism} gradients are not; use ternary, skellam or masking=false"
    if abs(sum(config.split.fractions) - 1) > 1e-6 or min(config.split.fractions) < 0:
        return f"split.fractions = {list(config.split.fractions)} must be shares that add up to 1"
    return None


def _skellam_problem(config: Config) -> str | None:
    """What differential privacy of single ratings asks of the rest: nothing that a rating moves may go unbounded."""
    training, model = config.training, config.model
    wanted = {
        "masking = true (only sums are protected)": config.masking,
        "model.form = factors (a message depends on all of a user's ratings)": model.form == "factors"
        and not model.residual,
        "model.bound and training.error_clip (they bound what a rating moves)": model.bound
        and training.error_clip,
        "training.batch = 0, user_blocks = 1 and participation = 1 (every rating in every round)": not training.batch
        and training.user_blocks == 1
        and training.participation == 1,
        "l2_rating = 0 (it weighs by how many ratings there are)": not training.l2_rating,
        "rescales of 1": config.gradients.rescale_users == 1 and not config.gradients.rescale_by_ratings,
        "training.objective = rating": not training.ranks,
        "gradients.noise_multiplier, or train --epsilon, which chooses it": config.gradients.noise_multiplier,
    }
    missing = [name for name, there in wanted.items() if not there]
    return (
        f"gradients.mechanism = skellam needs {missing[0]}; start from --preset private" if missing else None
    )
