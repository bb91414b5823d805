"""Compare ways to order the items of several parties in one list. Writes results/merged-lists.md.

    VERFEDGNN_DATA=... .venv/bin/python benchmarks/merged_lists.py FOLDER

FOLDER keeps the trainings; those that are missing are trained first. The test part judges. Likes are counted in the other parts,
and calibrations are fitted to the validation part of each party.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from torch import Tensor

import verfedgnn as vf
from pays_numbers import read_case
from verfedgnn.core.list_metrics import list_quality
from verfedgnn.data import TEST, TRAIN, VALID
from verfedgnn.runs.merged_order import is_liked, score_catalogues, weigh_parties

PAGE = Path(__file__).resolve().parent.parent / "results" / "merged-lists.md"
CASES = {
    "amazon": ("Amazon, books and movies", 800),
    "ml-100k-genre": ("MovieLens-100K, five parties by genre", 800),
    "ciao-all": ("Ciao, four categories, users at all of them", 800),
    "genre": ("MovieLens-1M, three parties by genre, 100 epochs", 100),
}
"""Title and epochs of each case."""
WAYS = {
    "share": "share of the party's catalogue, as before",
    "turns": "one item a party in turn",
    "likes in turn": "in turn, as often as the user likes items there",
    "isotonic": "isotonic calibration of the share",
    "logistic": "logistic calibration of share and number of likes",
    "merged": "**likes times share of the unrated items**",
}
"""Description of each way."""


class Study:
    """One run, with its test part as what users want."""

    def __init__(self, run: vf.Run) -> None:
        self.run = run
        tables = [party.ratings for party in run.parties]
        self.sizes = [table.n_items for table in tables]
        self.users = tables[0].n_users
        known = [
            vf.PartyData(party.name, party.ratings.take(part != TEST))
            for party, part in zip(run.parties, run.parts, strict=True)
        ]
        self.known = replace(run, parties=known)
        """The run as it would be served before the test ratings were given."""
        self.wanted = torch.cat([self._mark(p, (TEST,), liked=True) for p in range(len(tables))], 1)
        self.seen = [self._mark(p, (TRAIN, VALID)) for p in range(len(tables))]
        self.scores = [model.score(torch.arange(self.users)).double() for model in run.ranker.models]
        likes = [self._mark(p, (TRAIN, VALID), liked=True).sum(1) for p in range(len(tables))]
        self.likes = torch.stack(likes, 1).numpy()

    def _mark(self, party: int, parts: Sequence[int], *, liked: bool = False) -> Tensor:
        """Return which pairs (N, M_p) have a rating in these parts."""
        table = self.run.parties[party].ratings
        chosen = np.isin(self.run.parts[party], parts) & (is_liked(table) | (not liked))
        found = torch.zeros(self.users, self.sizes[party], dtype=torch.bool)
        found[table.user[chosen], table.item[chosen]] = True
        return found

    def order(self, way: str) -> list[Tensor]:
        """Return scores (N, M_p) of each party that order all items in one list."""
        if way == "merged":
            return score_catalogues(self.known, np.arange(self.users), range(len(self.sizes)))
        if way == "share":
            return [scores.log_softmax(1) for scores in self.scores]
        if way in ("isotonic", "logistic"):
            return [self._calibrate(p, way) for p in range(len(self.sizes))]
        weights = np.ones((self.users, len(self.sizes)))
        if way == "likes in turn":
            weights = weigh_parties(self.likes, self.likes.sum(0))
        ranks = [
            scores.masked_fill(seen, -torch.inf).argsort(1, descending=True).argsort(1)
            for scores, seen in zip(self.scores, self.seen, strict=True)
        ]
        return [-(rank + 0.5) / torch.from_numpy(weights[:, [p]]) - 1e-6 * p for p, rank in enumerate(ranks)]

    def _calibrate(self, party: int, way: str) -> Tensor:
        """Return how likely each item is liked, as fitted to the validation part of one party."""
        trained = self._mark(party, (TRAIN,))
        target = self._mark(party, (VALID,), liked=True)[~trained].numpy()
        share = self.scores[party].log_softmax(1)
        if way == "isotonic":
            fit = IsotonicRegression(out_of_bounds="clip").fit(share[~trained].numpy(), target)
            found = fit.predict(share.numpy().ravel()).reshape(share.shape)
            return torch.from_numpy(found) + 1e-9 * share  # steps keep the order of the model
        before = self._mark(party, (TRAIN,), liked=True).sum(1, keepdim=True)
        features = torch.stack([share, before.log1p().double().expand_as(share)], 2)
        model = LogisticRegression(C=1e6).fit(features[~trained].numpy(), target)
        now = torch.from_numpy(np.log1p(self.likes[:, [party]])).double()
        features = torch.stack([share, now.expand_as(share)], 2).flatten(0, 1)
        return torch.from_numpy(model.decision_function(features.numpy())).view(share.shape)

    def judge(self, way: str) -> tuple[float, float, float]:
        """Return NDCG@20, HitRate@20 and the share of places that the smallest catalogue gets."""
        scores = torch.cat(self.order(way), 1).masked_fill(torch.cat(self.seen, 1), -torch.inf)
        judged = self.wanted.any(1)
        _, ndcg, hit = list_quality(scores[judged], self.wanted[judged], 20).mean(1).tolist()
        owner = torch.repeat_interleave(torch.arange(len(self.sizes)), torch.tensor(self.sizes))
        places = owner[scores[judged].topk(20, 1).indices]
        return ndcg, hit, float((places == int(np.argmin(self.sizes))).double().mean())


def open_run(folder: Path, case: str, epochs: int) -> vf.Run:
    """Return the run of a case; train and save it if it is missing."""
    path = folder / case
    if not (path / "metrics.json").is_file():
        if case == "ml-100k-genre":
            parties = vf.split_items(vf.read_ratings("ml-100k"), 5, by="genre")
        else:
            parties = read_case(case, 0)
        vf.train(parties, vf.Config.preset("best", raters=0, epochs=epochs, list_epochs=1.0)).save(path)
    return vf.Run.load(path)


def main() -> None:
    """Measure all cases and write the page."""
    torch.set_num_threads(1)
    lines = [
        "# One list over several organisations",
        "",
        "A party's model orders the party's own catalogue. This page compares ways to put the items of all",
        "parties in one list. A list of 20 items is judged by all test items that the user likes, at any",
        "party; higher is better. *Smallest* is the share of places that go to the smallest catalogue,",
        "beside its share of the liked test items. Preset `best` without its second model of ratings,",
        "seed 0. The last row is what `verfedgnn recommend` does",
        "([Serving](../docs/serving.md#all-organisations)).",
        "`benchmarks/merged_lists.py` wrote this page.",
    ]
    for case, (title, epochs) in CASES.items():
        study = Study(open_run(Path(sys.argv[1]), case, epochs))
        smallest = int(np.argmin(study.sizes))
        start = sum(study.sizes[:smallest])
        own = study.wanted[:, start : start + study.sizes[smallest]].sum() / study.wanted.sum()
        lines += [
            "",
            f"## {title}",
            f"{int(study.wanted.any(1).sum()):,} users are judged. The smallest of {len(study.sizes)} catalogues has",
            f"{study.sizes[smallest]:,} of {sum(study.sizes):,} items and {100 * own:.0f} % of the liked test items.",
            "",
            "| order | NDCG@20 | HitRate@20 | smallest |",
            "|---|---|---|---|",
        ]
        for way, text in WAYS.items():
            ndcg, hit, places = study.judge(way)
            lines.append(f"| {text} | {ndcg:.4f} | {hit:.4f} | {100 * places:.0f} % |")
    PAGE.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
