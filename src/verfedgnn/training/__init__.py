"""Train a federation on one machine, each party alone, and the gate that combines both."""
