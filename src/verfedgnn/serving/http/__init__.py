"""The HTTP interface of a served run."""
