"""The best items of every user as one Parquet file, written in row groups."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from verfedgnn.core.errors import RunError
from verfedgnn.core.files import replacing
from verfedgnn.runs.run_folder import check_outside
from verfedgnn.serving.catalogue import FEDERATED, Catalogue
from verfedgnn.serving.explain import describe_recommendations, merge_rankings
from verfedgnn.serving.user_profile import ServedUser, make_queries, profile_user

GROUP_USERS = 4096
"""Users per row group."""
BATCH_USERS = 64
"""Users scored at a time."""
SCHEMA = pa.schema(
    [
        ("user", pa.string()),
        ("place", pa.int32()),
        ("item", pa.string()),
        ("title", pa.string()),
        ("party", pa.string()),
        ("score", pa.float32()),
        ("rating", pa.float32()),
    ]
)


def write_table(catalogue: Catalogue, path: Path, k: int) -> int:
    """Write the k best items of every user to `path`, and return the number of rows.

    The items are those of `Run.recommend`. The file appears only when it is complete.
    """
    check_outside(path)
    known = catalogue.run.parties[0].ratings.known_users.tolist()
    rows = 0
    try:
        with replacing(path) as file, pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
            for start in range(0, len(known), GROUP_USERS):
                columns: dict[str, list[object]] = {name: [] for name in SCHEMA.names}
                group = known[start : start + GROUP_USERS]
                for first in range(0, len(group), BATCH_USERS):
                    _add_users(catalogue, group[first : first + BATCH_USERS], k, columns)
                rows += len(columns["user"])
                writer.write_table(pa.table(columns, SCHEMA), row_group_size=max(1, len(columns["user"])))
    except OSError as error:
        raise RunError(
            f"cannot write {path}: {error.strerror or error}; choose another --out or free some disk space"
        ) from None
    return rows


def _add_users(catalogue: Catalogue, users: list[int], k: int, columns: dict[str, list[object]]) -> None:
    parties = range(len(catalogue.parties))
    ids = catalogue.run.parties[0].ratings.user_ids
    profiles = [profile_user(catalogue, FEDERATED, ServedUser(user), parties) for user in users]
    queries = [make_queries(catalogue, FEDERATED, profile, k, {}) for profile in profiles]
    by_party = [
        ranker.rank([query[p][1] for query in queries])
        for p, ranker in enumerate(catalogue.rankers[FEDERATED])
    ]
    for number, (user, profile) in enumerate(zip(users, profiles, strict=True)):
        best = merge_rankings(catalogue, profile, [ranked[number] for ranked in by_party], k)
        for place, item in enumerate(describe_recommendations(catalogue, FEDERATED, profile, best), 1):
            columns["user"].append(str(ids[user]))
            columns["place"].append(place)
            for name in ("item", "title", "party", "score", "rating"):
                columns[name].append(item[name])
