"""Whether a run's lists are better than the most popular items, in one sentence per party where they are not."""

from __future__ import annotations

from verfedgnn.runs.run import Run

NDCG = "ndcg@20"


def warn_about_lists(run: Run, party: str | None = None) -> list[str]:
    """Return a sentence with cause and remedy for each party whose lists lose to popularity on the test part.

    `party` restricts the check to one party.
    """
    sentences = []
    for row in run.metrics["parties"]:
        ndcg = row.get("test", {}).get(NDCG)
        popularity = row.get("popularity", {}).get(NDCG)
        if party not in (None, row["name"]) or ndcg is None or popularity is None or ndcg >= popularity:
            continue
        sentences.append(
            f"The lists of {row['name']} are worse than its most popular items (test NDCG@20 {ndcg:.4f} against {popularity:.4f}), "
            f"{_name_cause(run)}"
        )
    return sentences


def _name_cause(run: Run) -> str:
    """Return the likely cause and what to do about it."""
    if not run.ranker.config.training.ranks:
        return "because they are ordered by predicted ratings: train with lists=true and gate=true, as preset best does."
    if run.ranker.alone is None:
        return "because the party mixes nothing of its own into them: train with --set gate=true."
    return "because there are too few ratings to learn an order from: add ratings, or show the most popular items."
