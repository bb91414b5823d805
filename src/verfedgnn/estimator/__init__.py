"""A federation as an estimator, for notebooks."""
