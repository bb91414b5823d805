"""What a round consists of: its users and ratings, forward pass and loss, exchanged sums, and the public step."""
