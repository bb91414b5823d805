"""Building blocks that every other room may use: rated pairs, graphs, metrics, files and errors."""
