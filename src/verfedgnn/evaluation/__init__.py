"""How good a run is: accuracy, ranking, lift."""
