"""Names in a run folder that light commands need too; importing them loads neither NumPy nor torch."""

LISTS = "lists"
"""Folder in a run's folder with the model that orders lists."""
FORGET_RECORD = "forget.json"
"""File in a run's folder that says which users were forgotten, by keyed hashes."""
