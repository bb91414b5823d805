"""Runs, their catalogues and a client, shared by the tests of serving."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import verfedgnn as vf
from verfedgnn.data import synthetic_ratings
from verfedgnn.serving.catalogue import Catalogue


@pytest.fixture(scope="session")
def run() -> vf.Run:
    parties = vf.split_items(synthetic_ratings(users=200, items=120, ratings=8000, seed=3), by="category")
    return vf.train(parties, vf.Config.preset("best", epochs=60, final=False))


@pytest.fixture(scope="session")
def ranking_run() -> vf.Run:
    parties = vf.split_items(synthetic_ratings(users=120, items=90, ratings=4000, seed=5), parties=3, seed=5)
    return vf.train(parties, vf.Config.preset("best", epochs=40, gate=False, final=False).for_lists())


@pytest.fixture(scope="session")
def catalogue(run: vf.Run) -> Catalogue:
    return Catalogue(run, "first")


@pytest.fixture(scope="session")
def rating_catalogue(run: vf.Run) -> Catalogue:
    """The same run without its model of lists: predicted ratings order lists."""
    return Catalogue(replace(run, lists=None), "ratings")


@pytest.fixture(scope="session")
def client(catalogue: Catalogue) -> Iterator[Any]:
    httpx = pytest.importorskip("httpx", reason="httpx is not installed: no client")
    pytest.importorskip("fastapi", reason="the extra serve is not installed")
    from served import serving
    from verfedgnn.serving.app import make_app

    with serving(make_app(catalogue)) as address, httpx.Client(base_url=address, timeout=180) as client:
        yield client


@pytest.fixture(scope="session")
def known(run: vf.Run) -> str:
    """A user of the run."""
    return str(run.parties[0].ratings.user_ids[0])
