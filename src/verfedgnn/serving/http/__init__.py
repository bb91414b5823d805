"""The HTTP API and the web page of a served run."""
