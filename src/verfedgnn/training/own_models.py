r"""What a party computes at home: the models of preset best on its own ratings, means, popularity and EASE (docs/model.md).

The solver is that of the federation (`gnn/factor_model.py`, `rater_solver.py`, `list_model.py`) with one party, so nothing is rounded,
masked or sent. The validation part chooses the round of each model.

Where a model's items do not suit its users, `refit_items` fits them to the party's training ratings, by ridge regression around their
trained values w^0:

.. math::
    w_v = \arg\min_w \sum_{u \in N(v)} (r_{uv} - x_u \cdot w)^2 + \sum_c \lambda_c (w_c - w^0_{vc})^2

:math:`\lambda_c` is :math:`\lambda` times the variance of column c of x over the ratings, and :math:`\kappa` for a constant column
(the item's bias). The validation part chooses both, or the trained values. Nothing of this leaves the party. Under preset private, x_u
carries noise, and few rounds leave the items behind it. The second model computes w_v from its raters; then x_u = (w_u, 1, y_u) and
w^0 = (h_v, b_v, 0), so an item also reads y_u, what the presence of a rating by u says about an item.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, product

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.config.sections import choose_sizes
from verfedgnn.core.array_files import read_arrays, write_arrays
from verfedgnn.core.errors import Interrupted
from verfedgnn.core.files import make_folder
from verfedgnn.core.graph import build_graph, move_graph
from verfedgnn.core.item_item import ItemScores, fit_item_scores, fit_residuals
from verfedgnn.core.metrics import measure_errors, rank_each
from verfedgnn.core.pairs import Choices, Pairs, PartyInput
from verfedgnn.core.rating_means import Means, arrays
from verfedgnn.core.rating_scale import scale_unit, upper_quarter
from verfedgnn.gnn import list_model
from verfedgnn.gnn.factor_model import (
    ROUNDS_BEFORE_PRIOR,
    Estimates,
    PublicFactors,
    as_product,
    item_grams,
    solve_factors,
)
from verfedgnn.gnn.list_model import PublicLists, Strengths, choose_strengths, pair_weights, solve_lists
from verfedgnn.gnn.rater_solver import PublicRaters, choose_reads, solve_raters
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.prepared_data import Prepared
from verfedgnn.training.progress import Progress, Stop, Watcher, never

ROUNDS = 40
"""Most rounds of a model."""
PATIENCE = 6
"""Rounds without a better validation after which a model is finished, counted from `ROUNDS_BEFORE_PRIOR` on.

Curves can rest for a few rounds and fall again.
"""
BIAS_DAMPING = 5.0
"""Number of ratings at the mean that a user's first bias counts in addition to its own."""

SolvedRound = tuple[Tensor, Tensor]
"""Users (N, C) and items (M_p, C) after a round, whose product predicts."""


class OwnRatings:
    """A party's training ratings as a graph, and the unit in which they are solved."""

    def __init__(self, data: PartyInput) -> None:
        """Build the graph, with the deviation of each rating from its item's mean."""
        device = data.train.user.device
        user, item, rating = arrays(data.train)
        order = np.lexsort((item, user))
        user, item, rating = user[order], item[order], rating[order]
        self.mean = float(rating.mean()) if len(rating) else sum(data.scale) / 2
        self.unit = scale_unit(data.scale)
        targets = (rating - self.mean) / self.unit
        count = np.bincount(item, minlength=data.items)
        offset = np.bincount(item, targets, data.items) / np.maximum(count, 1)
        read = (targets - offset[item]) / 2
        graph = build_graph(user, item, users=data.users, items=data.items, values=read)
        self.graph = move_graph(graph, device)
        self.ratings = torch.from_numpy(rating.astype(np.float32)).to(device)
        """The ratings in the order of the graph's edges by user (E,)."""
        self.targets = torch.from_numpy(targets.astype(np.float32)).to(device)
        """The same, less their mean, in units of the party's scale."""
        self.counts = self.graph.user_degree[:, 0]
        """Number of each user's ratings (N,)."""
        users = int((self.counts > 0).sum())
        self.sizes = choose_sizes(users, int(self.counts.sum()))
        """Sizes of the models, as a federation of these users would have."""
        self.list_strengths = choose_strengths(max(1, users), data.items, len(rating))
        """The strengths of the party's own model of lists."""

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
        mean = torch.full_like(items[:, :1], self.mean)
        users = torch.cat([users, torch.ones_like(users[:, :1])], 1)
        return users, torch.cat([items * self.unit, mean], 1)


def own_rating_models(
    data: PartyInput, seed: int, choices: Choices, *, watch: Watcher | None = None, stop: Stop = never
) -> dict[str, PartyModel]:
    """Return a party's own models of ratings by name: *alone* and, on dense data, *alone raters*."""
    own = OwnRatings(data)
    sizes = choices.make("sizes", lambda: own.sizes)

    def judge(users: Tensor, items: Tensor) -> tuple[float, dict[str, float]]:
        rmse = measure_errors(users, items, data.valid, data.scale).rmse or 0.0
        return rmse, {"rmse": rmse}

    def best(name: str, rounds: Iterator[SolvedRound]) -> PartyModel:
        return _best(name, rounds, judge, f"{data.name} alone", choices, watch, stop, own.targets.device)

    models = {"alone": best("alone", _factor_rounds(own, sizes.dim, seed))}
    if sizes.raters:
        name, hidden = "alone raters", sizes.raters
        trained = best(name, _rater_rounds(own, hidden, seed))
        models[name] = refit_items(trained, data, choices, f"items of {name}", hidden)
    return models


def own_list_model(
    data: PartyInput, seed: int, choices: Choices, *, watch: Watcher | None = None, stop: Stop = never
) -> PartyModel:
    """Return a party's own model that orders lists."""
    own = OwnRatings(data)
    wanted = liked(data.valid, data.scale)
    size = choices.make("sizes", lambda: own.sizes).lists
    strengths = choices.make("strengths", lambda: own.list_strengths)

    def judge(users: Tensor, items: Tensor) -> tuple[float, dict[str, float]]:
        def score(rows: Tensor) -> Tensor:
            return users[rows] @ items.T

        ranks = rank_each(score, data.users, data.items, [data.train], wanted, sample=True)
        ndcg = float(ranks.ndcg.sum()) / max(1, len(ranks.users))
        return 1 - ndcg, {"ndcg@20": ndcg}

    rounds = _list_rounds(own, data, size, strengths, seed)
    label = f"{data.name} alone, lists"
    return _best("alone", rounds, judge, label, choices, watch, stop, own.targets.device)


def _factor_rounds(own: OwnRatings, size: int, seed: int) -> Iterator[SolvedRound]:
    vectors = own.draw(size, 1.0, torch.Generator().manual_seed(seed))
    public = PublicFactors.initial(vectors, own.biases, own.counts)
    estimates = Estimates()
    while True:
        solved = solve_factors(own.graph, own.targets, public, estimates)
        estimates = solved.estimates
        yield own.in_stars(*as_product(public.users, solved.items))
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
        solved = solve_raters(own.graph, own.targets, public, choose_reads(drawn))
        predict, _, marks = public.split()
        users, items = as_product(predict, solved.items)
        users, items = torch.cat([users, marks], 1), torch.cat([items, torch.zeros_like(items[:, 2:])], 1)
        yield own.in_stars(users, items)  # no item reads y_u before `refit_items`
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
        public = public.step(solved.gradient, solved.gram)


def _best(
    name: str,
    rounds: Iterator[SolvedRound],
    judge: Callable[[Tensor, Tensor], tuple[float, dict[str, float]]],
    label: str,
    choices: Choices,
    watch: Watcher | None,
    stop: Stop,
    device: torch.device,
) -> PartyModel:
    """Return the model of the round with the lowest validation error, or of the round that was chosen before.

    A finished model is kept in the folder of `choices`, so that a training that resumes does not repeat it.
    """
    if choices.repeats:
        users, items = next(islice(rounds, choices.make(name, lambda: 1) - 1, None))
        return PartyModel(users, items, items)
    kept = None if choices.folder is None else choices.folder / f"{name.replace(' ', '-')}.safetensors"
    if kept is not None and kept.is_file():
        arrays = {key: torch.from_numpy(array) for key, array in read_arrays(kept).items()}
        choices.make(name, lambda: int(arrays["round"]))
        users, items = (arrays[key].to(device) for key in ("users", "items"))
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
    if kept is not None:
        make_folder(kept.parent)
        arrays = {"users": users, "items": items, "round": torch.tensor(chosen)}
        write_arrays(kept, {key: tensor.contiguous().cpu().numpy() for key, tensor in arrays.items()})
    return PartyModel(users, items, items)


# -- models without a training ----------------------------------------------------------------------

EASE_DAMPINGS = (10.0, 50.0, 200.0, 1000.0)
"""Values of EASE's lambda that are tried for lists."""
RESIDUAL_DAMPINGS = (10.0, 30.0, 100.0, 300.0)
"""Values of EASE's lambda that are tried for ratings, in units of the squared scale."""


def means_model(means: Means, user_offset: NDArray[np.float64], device: torch.device) -> PartyModel:
    """Return mu + b_v + b_u as a model: the vectors (b_u, 1) and (1, mu + b_v)."""
    user = torch.from_numpy(user_offset.astype(np.float32)).to(device)
    item = torch.from_numpy((means.mean + means.item_offset).astype(np.float32)).to(device)
    users = torch.stack([user, torch.ones_like(user)], 1)
    items = torch.stack([torch.ones_like(item), item], 1)
    return PartyModel(users, items, items[:, :0])


def popularity_model(data: PartyInput) -> PartyModel:
    """Return a model that scores each item by the logarithm of its number of training ratings, the same for all users."""
    count = torch.bincount(data.train.item.long(), minlength=data.items).float()
    items = torch.log1p(count).unsqueeze(1)
    return PartyModel(torch.ones((data.users, 1), device=items.device), items, items[:, :0])


def ease_model(data: PartyInput, choices: Choices, dampings: Sequence[float] = EASE_DAMPINGS) -> PartyModel:
    """Fit EASE on the party's own training ratings; choose lambda by NDCG@20 on the validation part."""
    wanted = liked(data.valid, data.scale)
    without = model_without_items(data)

    def error(scores: ItemScores) -> float:
        model = replace(without, item_scores=scores)
        found = rank_each(model.score, data.users, data.items, [data.train], wanted, sample=True)
        return -float(found.ndcg.mean()) if len(found.ndcg) else 0.0

    scores = fit_item_scores(data, dampings, error, choices)
    return replace(without, item_scores=scores)


def residual_model(
    data: PartyInput, means: PartyModel, choices: Choices, dampings: Sequence[float] = RESIDUAL_DAMPINGS
) -> PartyModel:
    """Return `means` with EASE on what they leave of the training ratings; choose lambda by RMSE on the validation part."""
    left = replace(data.train, rating=(data.train.rating - means.predict(data.train)).float())

    def add(vectors: tuple[Tensor, Tensor]) -> PartyModel:
        users, items = torch.cat([means.users, vectors[0]], 1), torch.cat([means.items, vectors[1]], 1)
        return PartyModel(users, items, means.embeddings)

    def error(vectors: tuple[Tensor, Tensor]) -> float:
        predicted = add(vectors).predict(data.valid).clamp(*data.scale)
        return float((predicted - data.valid.rating).square().sum())

    scaled = [damping * scale_unit(data.scale) ** 2 for damping in dampings]
    return add(fit_residuals(replace(data, train=left), scaled, error, choices))


def model_without_items(data: PartyInput) -> PartyModel:
    """Return a model that knows nothing: vectors without numbers."""
    nothing = torch.zeros((data.users, 0), device=data.train.user.device)
    return PartyModel(nothing, nothing.new_zeros((data.items, 0)), nothing.new_zeros((data.items, 0)))


def liked(pairs: Pairs, scale: tuple[float, float]) -> Pairs:
    """Return the pairs whose rating is in the upper quarter of the scale."""
    return pairs.take(pairs.rating >= upper_quarter(scale))


def all_like(prepared: Sequence[Prepared]) -> bool:
    """Return whether each party has a liked rating in training; else no lists are federated."""
    return all(len(liked(each.train, each.party.ratings.scale)) for each in prepared)


def training_counts(data: PartyInput) -> Tensor:
    """Return the number of training ratings of each user at the party (N,)."""
    return torch.bincount(data.train.user.long(), minlength=data.users)


# -- items that are fitted again ----------------------------------------------------------------------

STRENGTHS = (10.0, 30.0, 100.0, 300.0, 1000.0)
"""Values of lambda that are tried on the validation part."""
BIAS_DAMPINGS = (1.0, 4.0, 16.0)
"""Values of kappa that are tried on the validation part."""


def refit_items(
    model: PartyModel, data: PartyInput, choices: Choices, name: str = "items", hidden: int = 0
) -> PartyModel:
    """Return `model` with the items that predict the party's validation part best, re-estimated or as trained.

    For the second model, with H = `hidden`, lambda is larger by the number of a user's numbers, and kappa the largest one.
    """
    fitted = (model.items != model.items[:1]).any(0) | (model.items == 0).all(0)
    if not len(data.train) or not fitted.any() or not (choices.repeats or len(data.valid)):
        return model
    own, users = OwnRatings(data), model.users
    left = (own.ratings - own.graph.products(users, model.items)).double()
    inputs = users[:, fitted].double()
    moments, counts = own.graph.sum_users(inputs, left), own.counts.double()
    spread = counts @ (inputs - counts @ inputs / len(left)).square() / len(left)
    scale, dampings = (2 * hidden, BIAS_DAMPINGS[-1:]) if hidden else (1, BIAS_DAMPINGS)
    options = [None, *product([scale * strength for strength in STRENGTHS], dampings)]
    tried = [choices.recorded[name]] if choices.repeats else options
    found = {option: model.items.clone() for option in tried}
    for group, gram in item_grams(own.graph, inputs):
        for option, items in found.items():
            if option is not None:
                penalty = torch.where(spread > 0, option[0] * spread, option[1])
                step = torch.linalg.solve(gram + torch.diag(penalty), moments[group])
                items[group] = items[group].index_add(1, fitted.nonzero()[:, 0], step.to(items))

    def error(option: tuple[float, float] | None) -> float:
        return measure_errors(model.vectors, found[option], data.valid, data.scale).squared

    return replace(model, items=found[choices.choose(name, tried, error)])
