"""The results of a training: run folder, checkpoints, tables, embeddings and metrics."""
