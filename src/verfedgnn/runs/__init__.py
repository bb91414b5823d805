"""What a training leaves behind: the run folder, checkpoints, tables, embeddings and figures."""
