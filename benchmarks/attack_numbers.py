"""Attack default trainings as `verfedgnn audit` does, on ML-100K, Ciao and Douban. Writes results/attacks/CASE.json.

    VERFEDGNN_DATA=... .venv/bin/python benchmarks/attack_numbers.py [--cases ml-100k ciao-any douban] [--seeds 0 1 2] [--one-model]

ML-100K and Douban add noise; they are also attacked without it, and Douban with a long second model. Finished attacks are kept, those of
another commit are repeated. `--one-model` attacks trainings of ratings without the second model, and writes CASE-one-model.json.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from verfedgnn.config import Config
from verfedgnn.runs.prepared_data import choose_config
from verfedgnn_research.attacks.item_attack import attack_items
from verfedgnn_research.attacks.overlap_attack import attack_overlap
from verfedgnn_research.experiments.training_cell import commit, read_case

RESULTS = Path(__file__).resolve().parent.parent / "results" / "attacks"
CASES = ("ml-100k", "ciao-any", "douban")
VARIANTS: dict[str, dict[str, dict[str, float]]] = {
    "douban": {"default": {}, "noise 0": {"gradients.noise": 0.0}, "H 64": {"model.raters": 64}},
    "ml-100k": {"default": {}, "noise 0": {"gradients.noise": 0.0}},
}
VICTIMS = {"ml-100k": 200}
ITEMS = 200


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--one-model", action="store_true")
    options = parser.parse_args()
    for seed in options.seeds:
        for case in options.cases:
            path = RESULTS / f"{case}{'-one-model' * options.one_model}.json"
            found = json.loads(path.read_text()) if path.exists() else {}
            if found.get("commit") != commit():
                found = {"commit": commit()}
            variants = VARIANTS.get(case, {"default": {}})
            if options.one_model:
                variants = {"one model": {"model.raters": 0}}
            for name, values in variants.items():
                attack(case, seed, name, values, found)
                path.write_text(json.dumps(found, indent=1) + "\n")


def attack(case: str, seed: int, variant: str, values: dict[str, float], found: dict[str, dict]) -> None:
    """Attack the trainings of ratings and lists of one variant, and add the figures to `found`."""
    parties = read_case(case, seed)
    config = choose_config(parties, Config.preset("best", seed=seed).with_values(values))
    for kind, each in {"ratings": config.with_values({"lists": False}), "lists": config.for_lists()}.items():
        figures = found.setdefault(variant, {}).setdefault(kind, {})
        if str(seed) in figures or (kind == "lists" and "model.raters" in values):
            continue
        began = time.time()
        try:
            figures[str(seed)] = attack_items(
                parties,
                each,
                rounds=each.training.epochs,
                victims=VICTIMS.get(case, 100),
                items=ITEMS,
            )
        except torch.linalg.LinAlgError as failure:
            figures[str(seed)] = {"failed": str(failure)}
            continue
        if kind == "ratings":
            told = attack_overlap(parties, each, seed=seed)
            best = {name: row["auc"] for name, row in told["attacks"].items()}
            figures[str(seed)]["overlap"] = {"guess": told["guess"], **best}
        print(case, seed, variant, kind, f"{time.time() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
