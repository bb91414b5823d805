"""A federation as an estimator, for notebooks and for scikit-learn's model selection."""
