"""Experiment tracking: parameters, curves and artefacts of a training in a tool that an organisation already has."""
