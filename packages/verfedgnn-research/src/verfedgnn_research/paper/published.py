"""The numbers printed in the paper: mean and standard deviation over five repetitions."""

from __future__ import annotations

TABLE2: dict[str, dict[tuple[str, str], tuple[float, float]]] = {
    "ml-1m": {
        ("mf", "gcn"): (0.9578, 0.0016),
        ("central", "gcn"): (0.9108, 0.0007),
        ("central", "gat"): (0.9062, 0.0029),
        ("central", "ggnn"): (0.9046, 0.0045),
        ("fedpergnn", "gcn"): (0.9282, 0.0012),
        ("fedpergnn", "gat"): (0.9282, 0.0017),
        ("fedpergnn", "ggnn"): (0.9236, 0.0023),
        ("fedsage", "gcn"): (0.9268, 0.0012),
        ("fedsage", "gat"): (0.9242, 0.0041),
        ("fedsage", "ggnn"): (0.9268, 0.0008),
        ("fedsage+", "gcn"): (0.9194, 0.0041),
        ("fedsage+", "gat"): (0.9146, 0.0033),
        ("fedsage+", "ggnn"): (0.9180, 0.0002),
        ("verfedgnn", "gcn"): (0.9152, 0.0013),
        ("verfedgnn", "gat"): (0.9146, 0.0010),
        ("verfedgnn", "ggnn"): (0.9076, 0.0024),
    },
    "book-crossing": {
        ("mf", "gcn"): (1.9972, 0.0063),
        ("central", "gcn"): (1.5820, 0.0050),
        ("central", "gat"): (1.5478, 0.0071),
        ("central", "ggnn"): (1.6562, 0.0040),
        ("fedpergnn", "gcn"): (1.6892, 0.0068),
        ("fedpergnn", "gat"): (1.6256, 0.0048),
        ("fedpergnn", "ggnn"): (1.6962, 0.0050),
        ("fedsage", "gcn"): (1.6916, 0.0118),
        ("fedsage", "gat"): (1.6256, 0.0048),
        ("fedsage", "ggnn"): (2.6596, 0.0133),
        ("fedsage+", "gcn"): (1.6335, 0.0065),
        ("fedsage+", "gat"): (1.6078, 0.0039),
        ("fedsage+", "ggnn"): (1.8788, 0.0401),
        ("verfedgnn", "gcn"): (1.5906, 0.0030),
        ("verfedgnn", "gat"): (1.5830, 0.0131),
        ("verfedgnn", "ggnn"): (1.6962, 0.0050),
    },
}
"""RMSE by data set, method and GNN. MF has no GNN and is listed under gcn."""

LAPLACE: dict[str, dict[str, tuple[float, float]]] = {
    "ml-1m": {"gcn": (0.9594, 0.0014), "gat": (0.9318, 0.0013), "ggnn": (0.9304, 0.0008)},
    "book-crossing": {"gcn": (1.7360, 0.0114), "gat": (1.6936, 0.0191), "ggnn": (1.7042, 0.0164)},
}
"""Table 6, Laplace noise with epsilon = 1. Its ternary rows are those of Table 2."""

TABLE1: dict[str, tuple[bool, bool, bool, str]] = {
    "mf": (False, False, False, "central"),
    "central": (True, False, False, "central"),
    "fedpergnn": (True, True, True, "local"),
    "fedsage": (True, False, False, "local"),
    "fedsage+": (True, False, True, "local"),
    "verfedgnn": (True, True, True, "local"),
}
"""High-order interaction, gradient protection, cross graph neighbourhood, storage."""

PROJECTION_SAVES = 0.506
"""Share of a round's bits that projection saves with q = N/5 and quantized gradients (Sec. 6.2.4)."""
QUANTIZATION_SAVES = 0.30
"""Least share of a round's bits that quantization saves for N/q >= 4 (Sec. 6.2.4)."""
WITHIN_CENTRAL = 0.018
"""Largest difference between VerFedGNN and CentralGNN, on average over models (Sec. 6.2.1)."""
BELOW_MF = {"ml-1m": 0.047, "book-crossing": 0.187}
"""Share by which VerFedGNN's RMSE is lower than MF's, on average over models (Sec. 6.2.1)."""

AttackScores = tuple[tuple[float, float], tuple[float, float], tuple[float, float]]
"""Precision, recall and F1, each with its standard deviation."""
AttackRow = tuple[str, str, str, float]
"""Method, GNN, attack and p_ad of a row."""

TABLE3: dict[AttackRow, AttackScores] = {
    ("fedpergnn", "gcn", "neighbourhood", 0.2): ((1.00, 0.00), (0.21, 0.01), (0.34, 0.01)),
    ("fedsage+", "gcn", "neighbourhood", 0.2): ((0.14, 0.00), (0.03, 0.01), (0.05, 0.01)),
    ("verfedgnn", "gcn", "neighbourhood", 0.2): ((0.01, 0.00), (0.01, 0.00), (0.01, 0.00)),
    ("fedpergnn", "gcn", "neighbourhood", 0.5): ((1.00, 0.00), (0.49, 0.03), (0.66, 0.02)),
    ("fedsage+", "gcn", "neighbourhood", 0.5): ((0.22, 0.03), (0.08, 0.00), (0.11, 0.00)),
    ("verfedgnn", "gcn", "neighbourhood", 0.5): ((0.02, 0.01), (0.01, 0.00), (0.01, 0.00)),
    ("fedpergnn", "gcn", "neighbourhood", 0.8): ((1.00, 0.00), (0.81, 0.01), (0.90, 0.01)),
    ("fedsage+", "gcn", "neighbourhood", 0.8): ((0.26, 0.02), (0.10, 0.01), (0.14, 0.01)),
    ("verfedgnn", "gcn", "neighbourhood", 0.8): ((0.02, 0.00), (0.01, 0.00), (0.02, 0.00)),
}
TABLE4: dict[AttackRow, AttackScores] = {
    ("verfedgnn", "gcn", "neighbourhood", 0.5): ((0.0176, 0.0074), (0.0107, 0.0056), (0.0132, 0.0064)),
    ("verfedgnn", "ggnn", "neighbourhood", 0.5): ((0.0210, 0.0041), (0.0134, 0.0035), (0.0160, 0.0027)),
    ("verfedgnn", "gcn", "exact", 0.5): ((0.0395, 0.0102), (0.0097, 0.0038), (0.0150, 0.0051)),
    ("verfedgnn", "ggnn", "exact", 0.5): ((0.0511, 0.0125), (0.0148, 0.0050), (0.0228, 0.0069)),
}
TABLE5: dict[AttackRow, AttackScores] = {
    ("verfedgnn", "gcn", "neighbourhood", 0.5): ((0.0026, 0.0010), (0.0071, 0.0052), (0.0037, 0.0018)),
    ("verfedgnn", "ggnn", "neighbourhood", 0.5): ((0.0033, 0.0002), (0.0064, 0.0006), (0.0044, 0.0002)),
    ("verfedgnn", "gcn", "exact", 0.5): ((0.0361, 0.0139), (0.0077, 0.0027), (0.0127, 0.0045)),
    ("verfedgnn", "ggnn", "exact", 0.5): ((0.0500, 0.0176), (0.0224, 0.0108), (0.0305, 0.0129)),
}
TABLE7: dict[AttackRow, AttackScores] = {
    ("fedpergnn", "gcn", "gradients", 0.2): ((0.0832, 0.026), (0.0094, 0.003), (0.0168, 0.006)),
    ("fedsage+", "gcn", "gradients", 0.2): ((0.2383, 0.102), (0.0116, 0.003), (0.0220, 0.006)),
    ("verfedgnn", "gcn", "gradients", 0.2): ((0.0527, 0.007), (0.0030, 0.0012), (0.0057, 0.002)),
    ("fedpergnn", "gcn", "gradients", 0.5): ((0.1033, 0.013), (0.0105, 0.001), (0.0191, 0.003)),
    ("fedsage+", "gcn", "gradients", 0.5): ((0.2775, 0.067), (0.0123, 0.002), (0.0236, 0.004)),
    ("verfedgnn", "gcn", "gradients", 0.5): ((0.0675, 0.021), (0.0036, 0.003), (0.006, 0.005)),
    ("fedpergnn", "gcn", "gradients", 0.8): ((0.1061, 0.019), (0.0018, 0.004), (0.0210, 0.007)),
    ("fedsage+", "gcn", "gradients", 0.8): ((0.1485, 0.016), (0.0119, 0.005), (0.0251, 0.008)),
    ("verfedgnn", "gcn", "gradients", 0.8): ((0.0623, 0.026), (0.0037, 0.002), (0.0070, 0.003)),
}
"""As printed. At p_ad = 0.8 two rows are inconsistent: a recall of 0.0018 (its F1 implies 0.0118), an F1
of 0.0251 (0.0220).
"""
