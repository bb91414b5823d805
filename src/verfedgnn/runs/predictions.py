"""The predictions that were judged, one row a test rating, from which anybody can recompute the figures of a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from verfedgnn.core.files import replacing
from verfedgnn.core.metrics import score_unseen
from verfedgnn.core.pairs import Pairs
from verfedgnn.core.rating_scale import upper_quarter
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.prepared_data import Prepared
from verfedgnn.runs.run import Run
from verfedgnn.runs.run_folder import check_outside


def write_predictions(run: Run, path: Path, k: int = 20) -> int:
    """Write the test ratings with the predictions of the judged models, with and without the federation, as Parquet; return their number.

    `predicted` is in stars and absent where only lists are trained; `place` is the item's place in the user's list of `k`, 0 if it is
    not in it, among the items without a training or validation rating. An item is `liked` from the upper quarter of the scale.
    """
    check_outside(path)
    judged, tables = run.judged, []
    ways = {"": (judged.models, judged.ranker.models)}
    if judged.alone is not None and judged.ranker.alone is not None:
        ways["_alone"] = (judged.alone, judged.ranker.alone)
    for p, party in enumerate(judged.prepared()):
        table = party.party.ratings
        for customers, pairs in (("known", party.test), ("new", party.newcomers)):
            user, item = (part.cpu().numpy() for part in (pairs.user, pairs.item))
            liked = (pairs.rating >= upper_quarter(table.scale)).cpu().numpy()
            columns = {
                "party": np.full(len(user), party.party.name),
                "customers": np.full(len(user), customers),
                "user": table.user_ids[user],
                "item": table.item_ids[item],
                "rating": pairs.rating.cpu().numpy(),
                "liked": liked,
            }
            for way, (rated, ordered) in ways.items():
                if not judged.config.ranks:
                    predicted = rated[p].predict(pairs).clamp(*table.scale)
                    columns[f"predicted{way}"] = predicted.cpu().numpy()
                columns[f"place{way}"] = _places(party, ordered[p], pairs, k)
            tables.append(pa.table({name: pa.array(list(values)) for name, values in columns.items()}))
    whole = pa.concat_tables(tables)
    with replacing(path) as file:
        pq.write_table(whole, file)
    return len(whole)


def _places(party: Prepared, model: PartyModel, pairs: Pairs, k: int) -> NDArray[np.int64]:
    """Return the place of each pair's item in the list of its user, from 1 to k; 0 if it is not in it."""
    sizes = party.party.ratings.n_users, party.party.ratings.n_items
    places = torch.zeros(len(pairs), dtype=torch.long, device=pairs.user.device)
    judged = torch.unique(pairs.user).long()
    for row_of, scores in score_unseen(model.score, judged, *sizes, [party.train, party.valid]):
        row = row_of[pairs.user.long()]
        here = torch.nonzero(row >= 0).squeeze(1)
        best = scores.topk(min(k, sizes[1]), 1).indices[row[here]]
        found = best == pairs.item[here].long().unsqueeze(1)
        places[here] = torch.where(found.any(1), found.int().argmax(1) + 1, 0)
    return places.cpu().numpy()
