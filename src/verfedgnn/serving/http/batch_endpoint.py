"""Many users' best items in one answer, a part at a time, so that others' questions are computed in between."""

from __future__ import annotations

import json

from verfedgnn.serving.catalogue import Catalogue
from verfedgnn.serving.explain import merged, recommendations
from verfedgnn.serving.http import lookup as ask
from verfedgnn.serving.http.batching import LARGEST_BATCH, Batcher
from verfedgnn.serving.http.http_problems import Problem
from verfedgnn.serving.http.schema import MOST_ANSWERS, Many


async def answer_many(catalogue: Catalogue, batcher: Batcher, many: Many) -> str:
    """The answers in the order of the users, as JSON; what holds for all of them, such as an unknown party, is a `Problem`."""
    if len(many.users) * many.k > MOST_ANSWERS:
        raise Problem(
            400,
            f"users times k is more than {MOST_ANSWERS:,}",
            "ask for fewer users at a time, or fewer items",
        )
    parties = ask.party_rows(catalogue, many.party)
    ask.shelves(catalogue, many.model)
    wanted = ask.where(catalogue, many.where, ())
    step, lines = max(1, LARGEST_BATCH // len(parties)), []
    for start in range(0, len(many.users), step):
        lines += await _part(catalogue, batcher, many, parties, many.users[start : start + step], wanted)
    return f'{{"answers":[{",".join(lines)}]}}'


async def _part(
    catalogue: Catalogue,
    batcher: Batcher,
    many: Many,
    parties: list[int],
    users: list[str],
    wanted: dict[str, str],
) -> list[str]:
    rows: list[int | Problem] = []
    for user in users:
        try:
            rows.append(ask.user_row(catalogue, user))
        except Problem as problem:
            rows.append(problem)
    known = [row for row in rows if isinstance(row, int)]
    questions = [
        one for row in known for one in ask.of_user(catalogue, many.model, row, parties, many.k, wanted)
    ]
    found = iter(await batcher.ask(questions))
    lines = []
    for user, row in zip(users, rows, strict=True):
        if isinstance(row, int):
            said = recommendations(catalogue, merged(parties, [next(found) for _ in parties], many.k))
        else:
            said = json.dumps(row.told(), separators=(",", ":"))
        lines.append(f'{{"user":{json.dumps(user)},{said[1:]}')
    return lines
