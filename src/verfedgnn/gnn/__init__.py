"""Graph neural networks: one operator per file, and the model around them."""
