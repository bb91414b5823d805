"""Recommendations, their reasons, similar items and pairs: questions to a catalogue, answered as plain dictionaries."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from verfedgnn.core.rating_scale import upper_quarter
from verfedgnn.serving.catalogue import FEDERATED, Catalogue
from verfedgnn.serving.fold_in import Folded, Rated, fold_in
from verfedgnn.serving.ranker import Found


def merged(parties: Sequence[int], found: Sequence[Found], k: int) -> list[tuple[int, int, float]]:
    """The k best of several parties' answers: (party, item, score as computed)."""
    pairs = [
        (p, row, score)
        for p, one in zip(parties, found, strict=True)
        for row, score in zip(one.rows, one.scores, strict=True)
    ]
    return sorted(pairs, key=lambda entry: -entry[2])[:k]


def shown(catalogue: Catalogue, party: int, score: float) -> float:
    """A score as it is shown: a rating stays within its scale."""
    low, high = catalogue.parties[party].table.scale
    return score if catalogue.ranks else float(min(max(score, low), high))


def recommendations(
    catalogue: Catalogue, best: Sequence[tuple[int, int, float]], why: Sequence[Any] = ()
) -> str:
    """The answer as JSON, put together from items that are written already; each with its reasons, where there are any."""
    items = [
        f'{catalogue.parties[p].written(row)},"score":{shown(catalogue, p, score)!r}'
        for p, row, score in best
    ]
    if why:
        items = [
            f'{item},"why":{json.dumps(one, separators=(",", ":"))}'
            for item, one in zip(items, why, strict=True)
        ]
    return f'{{"recommendations":[{"},".join(items)}{"}" if items else ""}]}}'


def reasons(
    catalogue: Catalogue,
    model: str,
    rated: Sequence[Rated],
    best: Sequence[tuple[int, int, float]],
    most: int,
) -> list[dict[str, Any]]:
    """Why each item, in parts that add up: score = average + habit + taste + rest.

    `average` is what the average user would get; `habit` what the user's own ratings add to the average item (some rate
    everything higher); `taste` what they add to this item beyond that, of which `because` names the largest parts; all by
    folding in (`folding.py`). The `rest` is 0 for a user who was folded in; for a trained one it is what the model knows
    besides, such as what the other parties contributed. Of a ranking the parts are those of the score before the softmax, and no
    rest is told.
    """
    places = catalogue.places[model]
    if model == FEDERATED:
        folds: dict[int, tuple[Folded, Sequence[Rated]]] = dict.fromkeys(
            {p for p, _, _ in best}, (fold_in(places, rated, ranks=catalogue.ranks), rated)
        )
    else:  # alone, a party knows its own ratings only
        alone = {p: [Rated(0, r.items, r.ratings) for r in rated if r.party == p] for p, _, _ in best}
        folds = {p: (fold_in([places[p]], mine, ranks=catalogue.ranks), mine) for p, mine in alone.items()}
    found = []
    for p, row, score in best:
        fold, mine = folds[p]
        typical = places[p].typical
        parts = fold.contributions(places[p].directions(np.array([row])) - typical)
        average, habit, taste = (
            float(places[p].level[row]),
            float(typical @ fold.z),
            sum(float(part.sum()) for part in parts),
        )
        largest = []
        for part, own in zip(parts, mine, strict=True):
            owner = catalogue.parties[own.party if model == FEDERATED else p]
            for i in np.argsort(-part[0])[:most]:
                largest.append((float(part[0, i]), owner, int(own.items[i]), float(own.ratings[i])))
        top = sorted(largest, key=lambda entry: -entry[0])[:most]
        because = [
            owner.describe(item) | {"rating": rating, "adds": value}
            for value, owner, item, rating in top
            if value > 0
        ]
        rest = {} if catalogue.ranks else {"rest": score - average - habit - taste}
        found.append({"average": average, "habit": habit, "taste": taste, **rest, "because": because})
    return found


def liked(catalogue: Catalogue, rated: Sequence[Rated]) -> list[Rated]:
    """The ratings that tell something: of a ranking, those of liked items."""
    if not catalogue.ranks:
        return list(rated)
    kept = []
    for own in rated:
        high = own.ratings >= upper_quarter(catalogue.parties[own.party].table.scale)
        if high.any():
            kept.append(Rated(own.party, own.items[high], own.ratings[high]))
    return kept


def similar(
    catalogue: Catalogue,
    party: int,
    item: int,
    parties: Sequence[int],
    k: int,
    wanted: Mapping[str, str] = MappingProxyType({}),
) -> list[dict[str, Any]]:
    """The k items whose predicted ratings rise and fall over users as this one's do: cosine in the common space."""
    places = catalogue.places[FEDERATED]
    direction = places[party].items[item]
    found: list[tuple[float, int, int]] = []
    for p in parties:
        lengths = np.linalg.norm(places[p].items, axis=1) * np.linalg.norm(direction)
        cosine = places[p].items @ direction / np.maximum(lengths, 1e-12)
        if p == party:
            cosine[item] = -np.inf
        only = catalogue.parties[p].mask(wanted)
        if only is not None:
            cosine[~only.numpy()] = -np.inf
        top = np.argpartition(-cosine, min(k, len(cosine)) - 1)[:k]
        found += [(float(cosine[row]), p, int(row)) for row in top if np.isfinite(cosine[row])]
    best = sorted(found, key=lambda entry: -entry[0])[:k]
    return [catalogue.parties[p].describe(row) | {"similarity": value} for value, p, row in best]
