"""An example of a custom baseline: item-item ridge regression (EASE, Steck 2019) around user and item means.

verfedgnn --plugin examples/my_baseline.py compare --methods bias,item-ridge,best --seeds 3
"""

import time
from collections.abc import Sequence

import numpy as np
import torch

import verfedgnn as vf
from verfedgnn.core.rating_means import fit_means
from verfedgnn.data import TRAIN
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.prepared_data import prepare, split_ratings
from verfedgnn_research.baselines.central_gnn import cut, handed_over
from verfedgnn_research.baselines.method import Declaration, Method, MethodResult, Where
from verfedgnn_research.baselines.pooled_parties import pool_parties

RIDGE = 100.0
"""Weight of the squared regression coefficients."""


@vf.register
class Ease(Method):
    """r_uv = mu + b_u + b_v + sum_w (residual of u's rating of w) B_wv with B_vv = 0, in closed form."""

    name = "item-ridge"
    title = "Item-item ridge (EASE)"
    by_gnn = False
    declares = Declaration(
        high_order=False,
        gradient_protection=False,
        cross_graph=False,
        storage="central",
        protects="nothing: whoever trains holds all ratings",
    )

    def train(self, parties: Sequence[vf.PartyData], config: vf.Config, where: Where) -> MethodResult:
        """Return two matrices per party whose products are ratings.

        Here a user's row holds the residuals of the user's ratings.
        """
        began = time.perf_counter()
        table = pool_parties(parties)
        parts = np.concatenate([split_ratings(party, config.split, config.seed) for party in parties])
        (pool,) = prepare([vf.PartyData("pooled", table)], config, where.device, [parts])
        means = fit_means(pool.input)
        mean = means.mean
        by_user = means.user_offset
        by_item = means.item_offset
        seen = table.take(parts == TRAIN)
        left = np.zeros((table.n_users, table.n_items))
        left[seen.user, seen.item] = seen.rating - mean - by_user[seen.user] - by_item[seen.item]
        inverse = np.linalg.inv(left.T @ left + RIDGE * np.eye(table.n_items))
        regression = np.eye(table.n_items) - inverse / np.diag(inverse)
        users = np.column_stack([left, mean + by_user, np.ones(table.n_users)])
        items = np.column_stack([regression.T, np.ones(table.n_items), by_item])
        whole = PartyModel(
            *(torch.from_numpy(each).float().to(where.device) for each in (users, items, items))
        )
        return MethodResult(
            cut(whole, table, parties), handed_over(parties), 0, 0, time.perf_counter() - began
        )
