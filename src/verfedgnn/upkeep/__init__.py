"""What changes in a run after its training: new items, features of items, and ratings that are forgotten."""
