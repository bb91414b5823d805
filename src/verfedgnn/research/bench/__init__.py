"""Measurements of what rounds cost and how that grows: one module per question, one record per
measurement, one report.
"""

from __future__ import annotations

from verfedgnn.research.bench import bytes_curve as curve
from verfedgnn.research.bench import gpu_bench as gpu
from verfedgnn.research.bench import growth, peers, phases, traffic
from verfedgnn.research.bench import many_parties as parties
from verfedgnn.research.bench import yelp_shape as yelp
from verfedgnn.research.bench.bench_suite import Question

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
