"""The coordinator's side of the protocol (Algorithm 1, server)."""
