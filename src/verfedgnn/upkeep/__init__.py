"""What changes in a run after its training: new items, and users who are forgotten."""
