"""Recommendations for many users in one response, computed in steps so that other requests are answered in between."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import orjson
from starlette.concurrency import run_in_threadpool

from verfedgnn.serving.catalogue import Catalogue
from verfedgnn.serving.explain import describe_recommendations, merge_rankings
from verfedgnn.serving.http import lookup
from verfedgnn.serving.http.batching import LARGEST_BATCH, Batcher
from verfedgnn.serving.http.http_problems import HttpProblem
from verfedgnn.serving.http.schema import MAX_BATCH_ITEMS, BatchRequest
from verfedgnn.serving.user_profile import UserProfile, make_queries, profile_user


async def answer_batch(
    catalogue: Catalogue, batcher: Batcher, request: BatchRequest, allowed: Sequence[int]
) -> bytes:
    """Return the answers in the order of the users, as JSON.

    An unknown user gets an error as answer. A mistake that concerns all users, such as an unknown party, is raised as
    `HttpProblem`.
    """
    if len(request.users) * request.k > MAX_BATCH_ITEMS:
        raise HttpProblem(
            400,
            f"users times k is more than {MAX_BATCH_ITEMS:,}",
            "request fewer users at a time, or fewer items",
        )
    parties = lookup.find_parties(catalogue, request.party, allowed)
    lookup.check_model(catalogue, request.model)
    filters = lookup.read_filters(catalogue, request.where, (), allowed)
    step = max(1, LARGEST_BATCH // len(parties))
    answers: list[orjson.Fragment] = []
    for start in range(0, len(request.users), step):
        users = request.users[start : start + step]
        answers += await _answer_users(catalogue, batcher, request, parties, users, filters)
    return orjson.dumps({"answers": answers})


async def _answer_users(
    catalogue: Catalogue,
    batcher: Batcher,
    request: BatchRequest,
    parties: list[int],
    users: list[str],
    filters: dict[str, str],
) -> list[orjson.Fragment]:
    profiles: list[UserProfile | HttpProblem] = []
    for user in users:
        try:
            found = lookup.find_user(catalogue, user, parties)
            make = partial(profile_user, catalogue, request.model, found, parties)
            profiles.append(await run_in_threadpool(make) if found.newer or found.features else make())
        except HttpProblem as problem:
            profiles.append(problem)
    queries = [
        query
        for profile in profiles
        if not isinstance(profile, HttpProblem)
        for query in make_queries(catalogue, request.model, profile, request.k, filters)
    ]
    ranked = iter(await batcher.rank(queries))
    answers = []
    answer: dict[str, Any]
    for user, profile in zip(users, profiles, strict=True):
        if isinstance(profile, HttpProblem):
            answer = {"user": user, **profile.as_dict()}
        else:
            best = merge_rankings(catalogue, profile, [next(ranked) for _ in parties], request.k)
            items = describe_recommendations(catalogue, request.model, profile, best)
            answer = {"user": user, "recommendations": items}
        answers.append(orjson.Fragment(orjson.dumps(answer)))
    return answers
