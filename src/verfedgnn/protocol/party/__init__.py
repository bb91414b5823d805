"""The party's side of the protocol (Algorithm 1, client)."""
