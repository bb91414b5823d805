"""Bound epsilon of preset private from below by planted ratings: 1,000 trainings with and without. Writes results/epsilon-audit.md.

    .venv/bin/python benchmarks/epsilon_audit.py [--trials 1000] [--budgets 4]

Finished budgets are kept in results/privacy/epsilon-audit.json and not measured again.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from verfedgnn import Config
from verfedgnn.privacy.rating_dp import fit_budget
from verfedgnn_research.attacks.epsilon_audit import audit_epsilon, claimed_epsilon
from verfedgnn_research.experiments.result_tables import markdown

RESULTS = Path(__file__).resolve().parent.parent / "results"
KEPT = RESULTS / "privacy" / "epsilon-audit.json"
DELTA = 1e-6
ERROR = 0.05
WEAKER = 8
"""Divisor of the noise in the control, which the audit must catch."""


def measure(budget: float, trials: int, divisor: int) -> dict[str, object]:
    """Audit one budget; with a divisor above 1, the noise is that much less than the claim needs."""
    config = fit_budget(Config.preset("private"), wanted=budget)
    claim = claimed_epsilon(config)
    config = config.with_values({"gradients.noise_multiplier": config.gradients.noise_multiplier / divisor})
    bounds = audit_epsilon(
        config, trials=trials, error=ERROR, watch=lambda n, all: print(f"\r{n}/{all}", end="")
    )
    return {
        "trials": trials,
        "claim": claim,
        "divisor": divisor,
        "bounds": [asdict(bound) for bound in bounds],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--budgets", type=float, nargs="+", default=[4.0])
    options = parser.parse_args()
    kept = json.loads(KEPT.read_text()) if KEPT.is_file() else {}
    wanted = [(budget, 1) for budget in options.budgets] + [(options.budgets[0], WEAKER)]
    for budget, divisor in wanted:
        name = f"{budget:g}" if divisor == 1 else f"{budget:g}, noise / {divisor}"
        if name not in kept:
            kept[name] = measure(budget, options.trials, divisor)
            KEPT.write_text(json.dumps(kept, indent=1) + "\n")
    rows = [
        [
            name,
            f"{record['claim']:.2f}" if record["divisor"] == 1 else f"{record['claim']:.2f} (false)",
            f"{record['trials']:,}",
            bound["planted"],
            bound["channel"],
            f"{bound['hits']:.3f}",
            f"{bound['false_alarms']:.3f}",
            f"{bound['epsilon']:.2f}",
            f"{bound['gaussian']:.2f}",
        ]
        for name, record in kept.items()
        for bound in record["bounds"]
    ]
    header = [
        "ε",
        "claim",
        "trainings each way",
        "planted in",
        "channel",
        "hits",
        "false alarms",
        "ε at least",
        "ε if Gaussian",
    ]
    text = [
        "# Empirical audit of epsilon",
        "",
        "A rating is planted. Two parties train many times without it, with it in the training part, and with it in the",
        "validation part (preset `private`, 40 rounds, δ = 1e-6). An attacker who sees a channel guesses which. The first half",
        "of the trainings fixes the guess, the second half measures it.",
        "",
        f"*ε at least* is a lower bound by Clopper-Pearson intervals that is wrong with a probability of at most {ERROR:g}.",
        "*ε if Gaussian* is the ε at δ of Gaussian noise with which these error rates are just possible; it extrapolates.",
        "A bound above the claim would disprove the claim. The last rows are a control, in which the noise is too small on purpose.",
        "The lower bound cannot exceed 4.9 with 1,000 trainings each way.",
        "",
        markdown(header, rows),
        "Made by `benchmarks/epsilon_audit.py`; the records are in `privacy/epsilon-audit.json`.",
        "",
    ]
    (RESULTS / "epsilon-audit.md").write_text("\n".join(text))


if __name__ == "__main__":
    main()
