"""No item leads most lists without being popular, on real data."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

import verfedgnn as vf
from verfedgnn.serving.catalogue import Catalogue
from verfedgnn.serving.fold_in import UserRatings
from verfedgnn.serving.user_lists import ServedUser, UserProfile, make_lists


def test_an_item_leads_half_of_the_lists_only_if_half_of_the_customers_rated_it(real_data: Path) -> None:
    parties = vf.read_parties(str(real_data / "ml-100k"), parties=2, seed=0)
    run = vf.train(parties, vf.Config.preset("best", epochs=4, final=False))
    catalogue, rng = Catalogue(run, "run"), np.random.default_rng(0)
    for p, party in enumerate(run.parties):
        count = party.ratings.n_users
        rated = [catalogue.parties[p].find_ratings(user) for user in range(0, count, 3)]
        three = [rng.choice(len(items), min(3, len(items)), replace=False) for items, _ in rated]
        given = zip(rated, three, strict=True)
        newcomers = [
            ServedUser(None, [UserRatings(p, items[few], stars[few])]) for (items, stars), few in given
        ]
        popularity = catalogue.parties[p].counts.max() / count
        for users in ([ServedUser(user) for user in range(0, count, 3)], newcomers):
            lists = make_lists([UserProfile(catalogue, user, [p]) for user in users], 1)
            (_, led), *_ = Counter(best[0][1] for best in lists if best).most_common(1)
            assert led / len(lists) <= max(0.5, popularity)
