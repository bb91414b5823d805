"""Algorithm 1 as two state machines that exchange messages."""
