"""Helpers of several test modules: a small configuration, a small federation, bit-for-bit equality, words of a page."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import verfedgnn as vf
from verfedgnn.core.metrics import RatingErrors, measure_errors
from verfedgnn.core.rating_means import fit_means
from verfedgnn.data.rating_checks import rate_rows
from verfedgnn.data.table_sources import in_arrow
from verfedgnn.protocol.party_state import LOCAL, Policy
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.prepared_data import prepare
from verfedgnn.training.local_runtime import LocalRuntime, local_federation
from verfedgnn.training.own_models import means_model


def make_ratings(user: Any, item: Any, rating: Any, **options: Any) -> vf.Ratings:
    """Return columns as ratings: options that name a column belong to the table, the others to `rate_rows`."""
    others = {"scale", "name", "duplicates", "missing", "notes"}
    about = options.pop("columns", {}) | {name: options.pop(name) for name in {*options} - others}
    about["title"] = about.pop("titles", None)
    rows = {"user": user, "item": item, "rating": rating, **about}
    given = {role: in_arrow(column, role) for role, column in rows.items() if column is not None}
    return rate_rows(given, **options)


def config(**values: Any) -> vf.Config:
    return vf.Config.preset("paper", **({"batch": 400, "epochs": 4} | values))


def timeless(metrics: dict[str, Any]) -> dict[str, Any]:
    """Return metrics without what differs between two equal trainings."""
    return {
        name: timeless(value) if isinstance(value, dict) else value
        for name, value in metrics.items()
        if name not in ("seconds", "environment")
    }


def page_text(page: str) -> str:
    """Return the words of an HTML page, without pictures and with one space between them."""
    bare = re.sub(r"<svg.*?</svg>|<style.*?</style>|</?(?:strong|code)>", "", page, flags=re.S)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", bare)).split())


def same(a: vf.Run, b: vf.Run) -> None:
    """Assert that two runs are bit-identical except for times."""
    assert timeless(a.metrics) == timeless(b.metrics)
    assert torch.equal(a.public, b.public)
    for mine, theirs in zip(a.models, b.models, strict=True):
        same_model(mine, theirs)
    validations = [[{k: v for k, v in h.items() if k != "seconds"} for h in r.history] for r in (a, b)]
    assert validations[0] == validations[1]
    assert a.ledger.to_dict() == b.ledger.to_dict()
    for mine_too, theirs_too in ((a.lists, b.lists), (a.final_of, b.final_of)):
        assert (mine_too is None) == (theirs_too is None)
        if mine_too is not None and theirs_too is not None:
            same(mine_too, theirs_too)


def same_model(a: PartyModel, b: PartyModel) -> None:
    """Assert that two models are bit-identical."""
    mine = a.arrays()
    theirs = b.arrays()
    assert mine.keys() == theirs.keys()
    for name in mine:
        assert torch.equal(mine[name], theirs[name]), name


def means_errors(ratings: vf.Ratings, parts: NDArray[np.int8]) -> RatingErrors:
    """Return the test errors of user and item means on a table in one place."""
    (pool,) = prepare([vf.PartyData("pooled", ratings)], vf.Config(), torch.device("cpu"), [parts])
    means = fit_means(pool.input)
    model = means_model(means, means.user_offset, torch.device("cpu"))
    return measure_errors(model.users, model.items, pool.test, ratings.scale)


def federation(parties: list[vf.PartyData], chosen: vf.Config, *, policy: Policy = LOCAL) -> LocalRuntime:
    prepared = prepare(parties, chosen, torch.device("cpu"))
    return local_federation([p.input for p in prepared], chosen, policy=policy)
