"""The process of one measurement: reads a task from standard input and prints its figures as the last
line.
"""

from __future__ import annotations

import importlib
import json
import sys

import torch

from verfedgnn.core.process_memory import keep_freed_memory

if __name__ == "__main__":
    keep_freed_memory()
    task = json.load(sys.stdin)
    torch.set_num_threads(task["threads"])
    module, name = task["function"].split(":")
    figures = getattr(importlib.import_module(f"verfedgnn.research.bench.{module}"), name)(
        **task["arguments"]
    )
    print("\n" + json.dumps(figures, allow_nan=False), flush=True)
