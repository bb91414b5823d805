"""Many trainings as one experiment: cells that are run in parallel, kept, and put into tables."""
