"""What all tests share: small federations, real data where there is some."""

from __future__ import annotations

import functools
import gc
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from pathlib import Path

import numpy as np
import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # otherwise a thread that waits keeps its core busy
import torch
import typer.main
import typer.testing
from hypothesis import settings

from shells import Shells
from verfedgnn import PartyData, split_items
from verfedgnn.cli.main import main
from verfedgnn.data import synthetic_ratings
from warm_python import use_warm_python, warm_python

settings.register_profile("steady", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("steady")
SLOW = (
    "test_commands_in_docs",
    "test_tutorial",
    "test_federation",
    "test_real_data",
    "test_cut_link",
    "test_federation_cli",
    "test_aligned_training",
    "test_flare_job",
)
"""Modules that take long, to be run first: two processes that share the modules then end at about the same time."""
build_commands = functools.cache(typer.main.get_command)
typer.main.get_command = typer.testing._get_command = build_commands  # once, not in every call of a command
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in the background of a shell
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # processes that tests start inherit what is ignored
gc.disable()  # until all modules are loaded, which stay
torch.set_num_threads(1)  # small tensors: threads only wait for each other, long on a busy machine


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move the tests of slow modules to the front."""
    order = {name: place for place, name in enumerate(SLOW)}
    items.sort(key=lambda item: order.get(item.path.stem, len(SLOW)))


def pytest_collection_finish() -> None:
    """Spare the garbage collector the modules, which take a tenth of the tests' time otherwise."""
    gc.enable()
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Let each test draw the same numbers, whichever tests ran before it in this process."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def small_parties() -> list[PartyData]:
    """Three parties with 120 common users; trains in a moment."""
    return split_items(synthetic_ratings(users=120, items=90, ratings=4000, seed=5), parties=3, seed=5)


@pytest.fixture(scope="module")
def short_own_models() -> Iterator[None]:
    """Train the models that a party has alone for three rounds instead of up to forty."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("verfedgnn.training.own_models.ROUNDS", 3)
        yield


@pytest.fixture
def real_data() -> Path:
    """The folder of real data sets, or a skip that says so."""
    folder = os.environ.get("VERFEDGNN_DATA")
    if not folder:
        pytest.skip("VERFEDGNN_DATA is not set: no real data here")
    return Path(folder)


@pytest.fixture
def warm() -> Iterator[None]:
    """Let this process start Python with the package loaded."""
    cold = sys.executable
    resource_tracker.ensure_running()  # one that ends after this process, not with the server of warm processes
    use_warm_python(warm_python())
    yield
    use_warm_python(cold)


@pytest.fixture
def shells(tmp_path: Path, warm: None) -> Iterator[Shells]:
    """Commands in the background; none survives the test."""
    shells = Shells(tmp_path)
    yield shells
    for process in shells.running:
        shells.kill(process)


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run `verfedgnn ...` in this process: exit code, standard output, standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["verfedgnn", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return run
