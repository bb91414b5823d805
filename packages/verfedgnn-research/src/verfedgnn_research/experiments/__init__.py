"""Many trainings as one experiment: they run in parallel, leave records and fill tables."""
