"""What joining gains each party, and the estimator in the style of scikit-learn."""
