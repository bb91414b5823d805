"""One masked round stays small enough to read: the files and functions of the package that it enters."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import verfedgnn as vf
from helpers import federation
from verfedgnn.protocol.party_state import Policy

PACKAGE = str(Path(vf.__file__).parent)
MOST_FILES = 25
MOST_FUNCTIONS = 120


class Entered:
    """The functions of the package that a block of code enters, as (file, name); comprehensions belong to their function."""

    def __init__(self) -> None:
        self.functions: set[tuple[str, str]] = set()

    def __enter__(self) -> Entered:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: Any) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and not code.co_name.startswith("<"):
            self.functions.add((code.co_filename.removeprefix(PACKAGE + "/"), code.co_qualname))


def test_one_masked_round_of_preset_best_enters_few_files_and_functions() -> None:
    ratings = vf.read_ratings("synthetic", users=60, items=30, ratings=900)
    parties = vf.split_items(ratings, parties=3, seed=0)
    runtime = federation(parties, vf.Config.preset("best", masking=True), policy=Policy())
    for _ in range(2):  # later rounds are all alike
        runtime.round()
    with Entered() as entered:
        closed = runtime.round()
    assert not closed.abandoned
    files = sorted({file for file, _ in entered.functions})
    assert len(files) <= MOST_FILES, "\n".join(files)
    assert len(entered.functions) <= MOST_FUNCTIONS, "\n".join(map(" ".join, sorted(entered.functions)))
