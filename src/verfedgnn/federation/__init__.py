"""Training across organisations, over a network. The names of key files are here, so that `--help` loads nothing else."""

AUTHORITY_KEY = "authority.key"
"""File beside federation.toml with the authority's private key, at the coordinator."""
COORDINATOR_KEY = "coordinator.key"
"""File with the coordinator's private key."""
PARTY_KEY = "key.pem"
"""File with a party's private key, at the party."""
