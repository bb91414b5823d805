"""A party's conditions for taking part in a training, from what its federation agreed on."""

from __future__ import annotations

from verfedgnn.config import Config
from verfedgnn.config.party_counts import active_count
from verfedgnn.federation.identity import MemberIdentity
from verfedgnn.protocol.party.policy import Policy


def make_policy(identity: MemberIdentity, config: Config, alignment: str) -> Policy:
    """Return the policy of a party in a training; `alignment` names its aligned users."""
    agreement = identity.agreement
    active = active_count(config, len(agreement.parties))
    return Policy(
        agreement.digest(),
        alignment,
        identity,
        smallest=min(agreement.smallest_sum, active) if config.masking else 1,
        place=(identity.index, len(agreement.parties)),
        most_rounds=agreement.max_rounds,
        fresh_noise="noise" not in config.unprotected,
    )
