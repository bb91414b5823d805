"""Names in a run folder that light commands need too; importing them loads neither NumPy nor torch."""

LISTS = "lists"
"""Folder in a run's folder with the model that orders lists."""
SEEDS = "seeds"
"""Folder in a run's folder with the lifts of other seeds and, while one of them is trained, its run folder."""
LIFT_FORMAT = 3
"""Format of the `lift` part of metrics.json. A lift of another format is left out when a run is read."""
FORGET_RECORD = "forget.json"
"""File in a run's folder that says which users were forgotten, by keyed hashes."""
