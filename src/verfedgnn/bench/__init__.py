"""What rounds cost and how that grows, measured: a small module per question, a record per measurement, one report."""

from __future__ import annotations

from verfedgnn.bench import curve, gpu, growth, parties, peers, phases, traffic, yelp
from verfedgnn.bench.suite import Question

_ASKED = (
    yelp.QUESTION,
    gpu.QUESTION,
    growth.QUESTION,
    traffic.QUESTION,
    parties.QUESTION,
    phases.QUESTION,
    peers.QUESTION,
    curve.QUESTION,
)
QUESTIONS: dict[str, Question] = {question.name: question for question in _ASKED}
