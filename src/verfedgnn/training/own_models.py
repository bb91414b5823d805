"""What a party can train without a federation: the models of preset best on its own ratings, in seconds (docs/model.md).

The solver is that of the federation (`gnn/factor_model.py`, `rater_solver.py`, `list_model.py`) with one party, so nothing is rounded,
masked or sent. The validation part chooses the round of each model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from verfedgnn.config.model_forms import Sizes, choose_sizes
from verfedgnn.core.errors import Interrupted
from verfedgnn.core.graph import Graph, build_graph, move_graph
from verfedgnn.core.metrics import measure_errors, rank_each
from verfedgnn.core.pairs import Choices, Pairs, PartyInput, scale_unit, upper_quarter
from verfedgnn.gnn import list_model, rater_solver
from verfedgnn.gnn.factor_model import (
    ROUNDS_BEFORE_PRIOR,
    ItemFactors,
    PublicFactors,
    as_product,
    solve_factors,
)
from verfedgnn.gnn.list_model import PublicLists, Strengths, choose_strengths, pair_weights, solve_lists
from verfedgnn.gnn.rater_solver import PublicRaters, solve_raters
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.training.progress import Progress, Stop, Watcher, never

ROUNDS = 40
"""Most rounds of a model."""
USUAL_ROUNDS = 30
"""Rounds after which most models are finished."""
PATIENCE = 6
"""Rounds without a better validation after which a model is finished, counted from `ROUNDS_BEFORE_PRIOR` on.

Curves can rest for a few rounds and fall again.
"""
BIAS_DAMPING = 5.0
"""Number of ratings at the mean that a user's first bias counts in addition to its own."""

SolvedRound = tuple[Tensor, Tensor]
"""Users (N, C) and items (M_p, C) after a round, whose product predicts."""


@dataclass(frozen=True)
class OwnRatings:
    """A party's training ratings as a graph, and the unit in which they are solved."""

    graph: Graph
    ratings: Tensor
    """The ratings in the order of the graph's edges by user (E,)."""
    targets: Tensor
    """The same, less their mean, in units of the party's scale."""
    mean: float
    unit: float

    @classmethod
    def of(cls, data: PartyInput) -> OwnRatings:
        """Build the graph of a party's training ratings, with the deviation of each rating from its item's mean."""
        device = data.train.user.device
        user, item = (part.cpu().numpy().astype(np.int64) for part in (data.train.user, data.train.item))
        rating = data.train.rating.cpu().numpy().astype(np.float64)
        order = np.lexsort((item, user))
        user, item, rating = user[order], item[order], rating[order]
        mean = float(rating.mean()) if len(rating) else sum(data.scale) / 2
        unit = scale_unit(data.scale)
        targets = (rating - mean) / unit
        count = np.bincount(item, minlength=data.items)
        offset = np.bincount(item, targets, data.items) / np.maximum(count, 1)
        graph = build_graph(
            user, item, users=data.users, items=data.items, values=(targets - offset[item]) / 2
        )
        ratings, solved = (torch.from_numpy(part.astype(np.float32)).to(device) for part in (rating, targets))
        return cls(move_graph(graph, device), ratings, solved, mean, unit)

    @property
    def counts(self) -> Tensor:
        """Number of each user's ratings (N,)."""
        return self.graph.user_degree[:, 0]

    @property
    def sizes(self) -> Sizes:
        """Sizes of the models, as a federation of these users would have."""
        return choose_sizes(int((self.counts > 0).sum()), int(self.counts.sum()))

    @property
    def list_strengths(self) -> Strengths:
        """The strengths of the party's own model of lists."""
        return choose_strengths(max(1, int((self.counts > 0).sum())), self.graph.items, len(self.ratings))

    @property
    def biases(self) -> Tensor:
        """Users' first biases (N,): their mean targets, shrunk towards 0."""
        total = torch.zeros_like(self.counts).index_add_(0, self.graph.edge_users.long(), self.targets)
        return total / (self.counts + BIAS_DAMPING)

    def draw(self, columns: int, std: float, generator: torch.Generator) -> Tensor:
        """Draw users' first vectors (N, columns); those of users without ratings are 0."""
        drawn = std * torch.randn((len(self.counts), columns), generator=generator)
        return drawn.to(self.targets.device) * (self.counts > 0).unsqueeze(1)

    def in_stars(self, users: Tensor, items: Tensor) -> SolvedRound:
        """Return vectors whose product is in stars; the mean becomes a column."""
        ones = torch.ones_like(users[:, :1])
        return torch.cat([users, ones], 1), torch.cat(
            [items * self.unit, torch.full_like(items[:, :1], self.mean)], 1
        )


def own_rating_models(
    data: PartyInput, seed: int, choices: Choices, *, watch: Watcher | None = None, stop: Stop = never
) -> dict[str, PartyModel]:
    """Return a party's own models of ratings by name: *alone* and, on dense data, *alone raters*."""
    own = OwnRatings.of(data)
    label = f"{data.name} alone"
    judge = _judge_ratings(data)
    sizes = choices.make("sizes", lambda: own.sizes)
    rounds = {"alone": _factor_rounds(own, sizes.dim, seed)}
    if sizes.raters:
        rounds["alone raters"] = _rater_rounds(own, sizes.raters, seed)
    return {name: _best(name, each, judge, label, choices, watch, stop) for name, each in rounds.items()}


def own_list_model(
    data: PartyInput, seed: int, choices: Choices, *, watch: Watcher | None = None, stop: Stop = never
) -> PartyModel:
    """Return a party's own model that orders lists."""
    own = OwnRatings.of(data)
    wanted = data.valid.take(data.valid.rating >= upper_quarter(data.scale))
    size = choices.make("sizes", lambda: own.sizes).lists
    strengths = choices.make("strengths", lambda: own.list_strengths)
    rounds = _list_rounds(own, data, size, strengths, seed)
    label = f"{data.name} alone, lists"
    return _best("alone", rounds, _judge_lists(data, wanted), label, choices, watch, stop)


def _factor_rounds(own: OwnRatings, size: int, seed: int) -> Iterator[SolvedRound]:
    vectors = own.draw(size, 1.0, torch.Generator().manual_seed(seed))
    public = PublicFactors.initial(vectors, own.biases, own.counts)
    home = ItemFactors(torch.zeros((own.graph.items, size + 1)).to(vectors))
    while True:
        solved = solve_factors(own.graph, own.targets, public, home)
        home = solved.home
        yield own.in_stars(*as_product(public.users, home.items))
        public = public.step(solved.gradient, solved.gram)


def _rater_rounds(own: OwnRatings, hidden: int, seed: int) -> Iterator[SolvedRound]:
    generator = torch.Generator().manual_seed(seed)
    first = [own.draw(hidden, 0.1, generator), own.biases.unsqueeze(1), own.draw(hidden, 0.3, generator)]
    tables = torch.cat([*first, torch.zeros_like(first[0])], 1)
    public = PublicRaters(tables, torch.zeros_like(tables), own.counts)
    assert own.graph.values is not None
    deviation = float(own.graph.values.square().mean())
    while True:
        drawn = torch.rand(len(own.targets), generator=generator).to(tables)
        solved = solve_raters(own.graph, own.targets, public, rater_solver.choose_reads(drawn))
        yield own.in_stars(*as_product(public.split()[0], solved.items))
        public = public.step(solved.gradient, solved.gram, deviation)


def _list_rounds(
    own: OwnRatings, data: PartyInput, size: int, strengths: Strengths, seed: int
) -> Iterator[SolvedRound]:
    users = own.draw(size, list_model.START / size**0.5, torch.Generator().manual_seed(seed))
    weights = pair_weights(own.ratings, upper_quarter(data.scale))
    by_user = torch.zeros_like(own.counts).index_add_(0, own.graph.edge_users.long(), weights)
    public = PublicLists(users, torch.zeros_like(users), by_user, data.items, strengths)
    while True:
        solved = solve_lists(own.graph, weights, public.users, strengths)
        yield public.users, solved.items
        public = public.step(solved.gradient, solved.grams)


def _best(
    name: str,
    rounds: Iterator[SolvedRound],
    judge: Callable[[Tensor, Tensor], tuple[float, dict[str, float]]],
    label: str,
    choices: Choices,
    watch: Watcher | None,
    stop: Stop,
) -> PartyModel:
    """Return the model of the round with the lowest validation error, or of the round that was chosen before."""
    if choices.repeats:
        users, items = next(islice(rounds, choices.make(name, lambda: 1) - 1, None))
        return PartyModel(users, items, items)
    best: tuple[float, int, dict[str, float], SolvedRound] | None = None
    for round, solved in zip(range(1, ROUNDS + 1), rounds, strict=False):
        error, judged = judge(*solved)
        if best is None or error < best[0]:
            best = error, round, judged, solved
        if watch is not None:
            watch(Progress(label=label, round=round, rounds=ROUNDS, valid=judged, best=best[2], bytes=0))
        if stop():
            raise Interrupted(f"stopped while training {label}", "")
        if round - max(best[1], ROUNDS_BEFORE_PRIOR) >= PATIENCE:
            break
    assert best is not None
    chosen = best[1]
    choices.make(name, lambda: chosen)
    users, items = best[3]
    return PartyModel(users, items, items)


def _judge_ratings(data: PartyInput) -> Callable[[Tensor, Tensor], tuple[float, dict[str, float]]]:
    def judge(users: Tensor, items: Tensor) -> tuple[float, dict[str, float]]:
        rmse = measure_errors(users, items, data.valid, data.scale).rmse or 0.0
        return rmse, {"rmse": rmse}

    return judge


def _judge_lists(
    data: PartyInput, wanted: Pairs
) -> Callable[[Tensor, Tensor], tuple[float, dict[str, float]]]:
    def judge(users: Tensor, items: Tensor) -> tuple[float, dict[str, float]]:
        ranks = rank_each(
            lambda rows: users[rows] @ items.T, data.users, data.items, [data.train], wanted, sample=True
        )
        ndcg = float(ranks.ndcg.sum()) / max(1, len(ranks.users))
        return 1 - ndcg, {"ndcg@20": ndcg}

    return judge


def try_own(data: PartyInput, *, ranks: bool) -> float:
    """Return the expected seconds of a party's own models: three rounds of each, times the rounds that they usually take."""
    own = OwnRatings.of(data)
    sizes = own.sizes
    strengths = own.list_strengths
    trials = (
        [_list_rounds(own, data, sizes.lists, strengths, 0)] if ranks else [_factor_rounds(own, sizes.dim, 0)]
    )
    if not ranks and sizes.raters:
        trials.append(_rater_rounds(own, sizes.raters, 0))
    began = time.perf_counter()
    for rounds in trials:
        for _ in range(3):
            next(rounds)
    return (time.perf_counter() - began) / 3 * USUAL_ROUNDS
