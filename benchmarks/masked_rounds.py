"""Run thousands of masked rounds with random kills, delays and one liar, and check what the coordinator could compute.

    python benchmarks/masked_rounds.py [--rounds 5000] [--parties 7] [--min-parties 4] [--faults 0.01] [--seed 0]

Every step is drawn at random on one thread (tests/simulated_federation.py). The liar joins again some time after it was excluded.
The run fails unless every applied sum is exact, all replicas are identical at the end, at most one survivor list a round could be
unmasked from everything that the coordinator received, and never both seeds of a party.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from simulated_federation import Simulation


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5000)
    parser.add_argument("--parties", type=int, default=7)
    parser.add_argument("--min-parties", type=int, default=4)
    parser.add_argument("--faults", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        simulation = Simulation(
            Path(name),
            parties=options.parties,
            quorum=options.min_parties,
            rounds=options.rounds,
            seed=options.seed,
            faults=options.faults,
            liar=2,
            returns=0.0005,
            patience=0,
        )
        simulation.run()
        simulation.check()
    figures = {
        "rounds": simulation.coordinator.round,
        "abandoned": simulation.stage.record.abandoned,
        "repeats": simulation.stage.record.repeats,
        "liar_excluded": simulation.offences[str(simulation.liar)],
        "honest_excluded": sum(simulation.offences.values()) - simulation.offences[str(simulation.liar)],
        **simulation.counts,
        "unmask_messages": len(simulation.reveals),
        "seconds": round(time.monotonic() - began, 1),
    }
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
