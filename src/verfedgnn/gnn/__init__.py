"""Graph neural networks: one operator a file, the model around them."""
