"""Experiments with verfedgnn: baselines, attacks, the paper's tables and figures and benchmarks."""
