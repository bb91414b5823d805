"""One round of a model whose items are solved at home: what a party computes, what it releases, and the public step.

The first round shares how many ratings each user has, and the sum of their targets. Every later round shares the gradient of the
users, and a few small sums. Everything that is summed is an integer of 8 bits, so that masks hide it:

- a gradient, divided by the root of n_u + 1 and by the unit of its column, is rounded at random. The units follow from the last round's
  sums, so they are public;
- a count, a sum of targets or a small sum is in fixed point, cut into limbs of 8 bits.

The coordinator computes the step and sends it as integers with an exponent per column, so that all replicas stay bit-identical on
machines whose linear algebra differs in the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.core.graph import Graph
from verfedgnn.core.key_stream import KeyStream
from verfedgnn.gnn.factor_model import ItemFactors, PublicFactors, as_product, solve_factors
from verfedgnn.gnn.list_model import solve_lists
from verfedgnn.gnn.model import Model
from verfedgnn.gnn.rater_solver import PublicRaters, choose_reads, solve_raters
from verfedgnn.gnn.solved_layout import LIMBS, SolvedLayout

LARGEST = 127
"""Largest rounded value of one party."""
STEPS_PER_DEVIATION = 16
"""Units in the root mean square of a column."""
SUM_BITS = 24
"""Fractional bits of a small sum."""
WIDE_LIMBS = 3
"""Limbs of a count, and of a sum of targets."""
TARGET_BITS = 10
"""Fractional bits of a sum of targets, and of the first bias of a user."""
LARGEST_STEP = 2047
"""Largest integer of a public step."""
BIAS_DAMPING = 5.0
"""Number of ratings at the mean that a user's first bias counts in addition to its own."""
FEWEST_DIMENSIONS = 2 * WIDE_LIMBS
"""Shortest vectors that have room for the sums of the first round."""


@dataclass(frozen=True)
class SolvedStep:
    """What a party computed in a round."""

    gradient: Tensor
    """The released columns of all users (N, C); in the first round counts and sums of targets (N, 2)."""
    sums: dict[str, Tensor]
    """Small sums by name (`SolvedLayout.sum_shapes`), as shares of means over the federation."""
    users: Tensor
    """Users and items whose product predicts, in units of the targets; the mean of two models if there are two."""
    items: Tensor
    private: dict[str, Tensor]
    """The party's items, and its estimates of noise and prior."""


def is_first(model: Model, parameters: Tensor) -> bool:
    """Return whether no public step has been taken yet."""
    return not bool(model.views(parameters)["counts"].any())


def solve_at_home(
    model: Model,
    parameters: Tensor,
    private: Mapping[str, Tensor],
    graph: Graph,
    targets: Tensor,
    drawn: Tensor,
    *,
    ratings: int,
    items: int,
) -> SolvedStep:
    """Solve a party's items given the public users, and return the users' gradient given the items.

    `targets` are ratings in units of the party's scale, or for lists the weights of pairs, in the order of the graph's edges by user.
    `drawn` holds a uniform number for each, which chooses what the second model reads. `ratings` and `items` count those of all parties.
    """
    layout = model.solved
    assert layout is not None
    views = model.views(parameters)
    first = is_first(model, parameters)
    counts = torch.zeros_like(views["counts"][:, 0])
    edges = graph.edge_users.long()
    total = counts.index_add(0, edges, targets)
    counts = counts.index_add(0, edges, targets if layout.lists else torch.ones_like(targets))
    if first:
        views = _own_view(layout, views, counts, total)
    zero = {name: torch.zeros_like(view) for name, view in views.items()}
    home = private["home"][0]
    if layout.lists:
        lists = solve_lists(graph, targets, views["users"])
        gradient, served = lists.gradient, (views["users"], lists.items)
        solved = lists.items
        sums = {"grams": torch.stack([lists.grams[0] / max(1, ratings), lists.grams[1] / max(1, items)])}
    else:
        kept = ItemFactors(private["items"])
        if home[0] > 0:
            kept = replace(
                kept, noise=float(home[0]), rounds=int(home[1]), prior=home[2:] if home[2] > 0 else None
            )
        factors = solve_factors(graph, targets, layout.factors(views, zero), kept)
        solved = factors.home.items
        prior = torch.zeros_like(home[2:]) if factors.home.prior is None else factors.home.prior
        head = torch.tensor([factors.home.noise, factors.home.rounds]).to(prior)
        home = torch.cat([head, prior])
        gradient, sums = factors.gradient, {"gram": factors.gram / max(1, ratings)}
        served = as_product(views["users"], solved)
        if layout.rater_columns:
            raters = solve_raters(graph, targets, layout.raters(views, zero), choose_reads(drawn))
            assert graph.values is not None
            gradient = torch.cat([gradient, raters.gradient], 1)
            sums |= {
                "rater_gram": raters.gram / max(1, ratings),
                "deviation": graph.values.square().sum().view(1) / max(1, ratings),
            }
            predict, read = as_product(layout.raters(views, zero).split()[0], raters.items)
            served = torch.cat([served[0], predict], 1), torch.cat([served[1], read], 1) / 2
    scaled = gradient / (views["counts"] + 1).sqrt()
    sums["moments"] = scaled.square().mean(0)
    if first:
        gradient = torch.stack([counts, torch.zeros_like(total) if layout.lists else total], 1)
    return SolvedStep(gradient, sums, *served, {"items": solved, "home": home.unsqueeze(0)})


def _own_view(
    layout: SolvedLayout, views: Mapping[str, Tensor], counts: Tensor, total: Tensor
) -> dict[str, Tensor]:
    """Return the public parameters as if the party were alone, before the first sums are known."""
    own = {name: view.clone() for name, view in views.items()}
    _start_users(layout, own, counts, total / (counts + BIAS_DAMPING))
    return own


def _start_users(layout: SolvedLayout, views: Mapping[str, Tensor], counts: Tensor, biases: Tensor) -> None:
    """Set counts and first biases in place; users without ratings start at 0."""
    views["counts"].copy_(counts.unsqueeze(1))
    rated = (counts > 0).unsqueeze(1)
    for name in ("users", "raters"):
        if name in views:
            views[name].mul_(rated)
    if not layout.lists:
        views["users"][:, -1] = biases
        if layout.rater_columns:
            views["raters"][:, layout.config.raters] = biases


# -- what leaves a party -------------------------------------------------------------------------------------


def encode_release(
    model: Model, parameters: Tensor, step: SolvedStep, stream: KeyStream | None
) -> NDArray[Any]:
    """Return a party's release, before masks: integers of 8 bits, or real numbers without a `stream` to round with."""
    layout = model.solved
    assert layout is not None
    views = model.views(parameters)
    found = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in model.shapes.items()}
    flat_sums = torch.cat([step.sums[name].flatten() for name in layout.sum_shapes]).cpu()
    gradient = step.gradient.cpu()
    first = is_first(model, parameters)
    if stream is None:
        found["sums"][: len(flat_sums)] = flat_sums
        if first:
            found["users"][:, :2] = gradient
        else:
            _put_columns(found, gradient)
        return model.flat(found).to(torch.float32).numpy()
    fixed = (flat_sums.double() * 2**SUM_BITS).round().clamp(-(2**31) + 2**24, 2**31 - 2**24)
    found["sums"].copy_(_to_limbs(fixed.to(torch.int64), LIMBS).flatten())
    if first:
        scale = torch.tensor([2.0, 2.0**TARGET_BITS], dtype=torch.float64)
        limit = 2 ** (8 * WIDE_LIMBS - 1) - 2 ** (8 * WIDE_LIMBS - 8)
        whole = (gradient.double() * scale).round().clamp(-limit, limit).to(torch.int64)
        found["users"][:, :FEWEST_DIMENSIONS] = _to_limbs(whole, WIDE_LIMBS).flatten(1)
    else:
        units = layout.shared(views["sums"])["units"].cpu().double()
        scaled = gradient.double() / ((views["counts"].cpu().double() + 1).sqrt() * units)
        noise = torch.from_numpy(stream.uniform(tuple(scaled.shape)))
        _put_columns(found, (scaled + noise).floor().clamp(-LARGEST, LARGEST))
    return model.flat(found).to(torch.int16).numpy()


def _put_columns(tables: Mapping[str, Tensor], columns: Tensor) -> None:
    """Write the released columns (N, C) into the tables of the users."""
    width = tables["users"].shape[1]
    tables["users"].copy_(columns[:, :width])
    if "raters" in tables:
        tables["raters"].copy_(columns[:, width:])


def _to_limbs(values: Tensor, limbs: int) -> Tensor:
    """Cut integers into `limbs` digits from -128 to 127, the lowest first: (...,) -> (..., limbs)."""
    found = []
    for _ in range(limbs):
        digit = ((values + 128) & 255) - 128
        found.append(digit)
        values = (values - digit) >> 8
    return torch.stack(found, -1)


def _from_limbs(digits: Tensor) -> Tensor:
    """Return the integers of which `_to_limbs` made the digits (..., limbs), or their sums."""
    weights = torch.tensor([256**n for n in range(digits.shape[-1])], dtype=torch.int64, device=digits.device)
    return (digits.to(torch.int64) * weights).sum(-1)


# -- the public step -----------------------------------------------------------------------------------------


def compute_update(
    model: Model, parameters: Tensor, velocity: Tensor, total: Tensor, *, ratings: int, items: int
) -> NDArray[Any]:
    """Return the update of the public parameters that follows from the sum of all parties' releases."""
    layout = model.solved
    assert layout is not None
    exact = total.is_floating_point()
    views = model.views(parameters)
    found = model.views(total)
    first = is_first(model, parameters)
    size = sum(int(np.prod(shape)) for shape in layout.sum_shapes.values())
    if exact:
        flat_sums = found["sums"][:size]
    else:
        flat_sums = (_from_limbs(found["sums"].view(-1, LIMBS)).double() / 2**SUM_BITS).to(parameters)
    parts = torch.split(flat_sums, [int(np.prod(shape)) for shape in layout.sum_shapes.values()])
    sums = {
        name: part.view(shape) for (name, shape), part in zip(layout.sum_shapes.items(), parts, strict=True)
    }
    new = {name: view.clone() for name, view in views.items()}
    shared = layout.shared(new["sums"])
    if first:
        columns = found["users"]
        if exact:
            counts, targets = columns[:, 0], columns[:, 1]
        else:
            limbs = columns[:, :FEWEST_DIMENSIONS].reshape(-1, 2, WIDE_LIMBS)
            whole = _from_limbs(limbs).to(parameters)
            counts, targets = whole[:, 0].clamp(min=0) / 2, whole[:, 1] / 2**TARGET_BITS
        biases = targets / (counts + BIAS_DAMPING)
        if not exact:
            biases = (biases * 2**TARGET_BITS).round() / 2**TARGET_BITS
        _start_users(layout, new, counts, biases)
        if not layout.lists:
            shared["gram"].copy_(sums["gram"] * ratings / counts.sum().clamp(min=1))
    else:
        columns = torch.cat([found[name] for name in ("users", "raters") if name in found], 1).to(parameters)
        if not exact:
            columns = columns * shared["units"] * (views["counts"] + 1).sqrt()
        _step(layout, views, model.views(velocity), columns, sums, new, ratings=ratings, items=items)
    shared["units"].copy_(sums["moments"].clamp(min=1e-12).sqrt() / STEPS_PER_DEVIATION)
    if exact:
        return model.flat(new).cpu().numpy()
    return _encode_update(model, layout, views, new, first=first)


def _step(
    layout: SolvedLayout,
    views: Mapping[str, Tensor],
    velocity: Mapping[str, Tensor],
    columns: Tensor,
    sums: Mapping[str, Tensor],
    new: Mapping[str, Tensor],
    *,
    ratings: int,
    items: int,
) -> None:
    """Take the preconditioned step of every table, in `new`."""
    if layout.lists:
        public = layout.public_lists(views, velocity, items)
        scale = torch.tensor([ratings, items]).to(columns).view(2, 1, 1)
        new["users"].copy_(public.step(columns, sums["grams"] * scale).users)
        return
    width = layout.columns
    shared = layout.shared(new["sums"])
    factors: PublicFactors = layout.factors(views, velocity).step(columns[:, :width], sums["gram"] * ratings)
    new["users"].copy_(factors.users)
    shared["gram"].copy_(factors.gram)
    shared["prior"].copy_(factors.prior)
    if layout.rater_columns:
        raters: PublicRaters = layout.raters(views, velocity).step(
            columns[:, width:], sums["rater_gram"] * ratings, float(sums["deviation"])
        )
        new["raters"].copy_(raters.tables)


def _encode_update(
    model: Model, layout: SolvedLayout, old: Mapping[str, Tensor], new: Mapping[str, Tensor], *, first: bool
) -> NDArray[np.int16]:
    """Return an update as integers: steps with an exponent per column, and the bits of the shared values."""
    found = {name: torch.zeros(shape, dtype=torch.int64) for name, shape in model.shapes.items()}
    bits = new["sums"][: layout.shared_size].cpu().contiguous().numpy().view(np.int16)
    found["sums"][: len(bits)] = torch.from_numpy(bits.astype(np.int64))
    if first:
        counts = (2 * new["counts"][:, 0].cpu()).round().to(torch.int64)
        biases = torch.zeros_like(counts)
        if not layout.lists:
            biases = (new["users"][:, -1].cpu().double() * 2**TARGET_BITS).round().to(torch.int64)
        found["users"][:, :3] = torch.stack([counts & 0x7FFF, counts >> 15, biases.clamp(-32768, 32767)], 1)
    else:
        steps = torch.cat(
            [(new[name] - old[name]).cpu() for name in ("users", "raters") if name in old], 1
        ).double()
        largest = steps.abs().amax(0).clamp(min=2.0**-60)
        exponents = torch.ceil(torch.log2(largest / LARGEST_STEP))
        _put_columns(found, (steps / _powers_of_two(exponents)).round().to(torch.int64))
        at = 2 * layout.shared_size
        found["sums"][at : at + layout.released] = exponents.to(torch.int64)
    return model.flat(found).to(torch.int16).numpy()


def _powers_of_two(exponents: Tensor) -> Tensor:
    """Return 2^x for whole numbers x, exactly and the same on every machine."""
    return torch.from_numpy(np.ldexp(1.0, exponents.cpu().numpy().astype(np.int32)))


def apply_update(model: Model, parameters: Tensor, velocity: Tensor, update: Tensor) -> None:
    """Apply an update to the public parameters in place, and note the step that each table took in `velocity`."""
    layout = model.solved
    assert layout is not None
    views, moved, found = model.views(parameters), model.views(velocity), model.views(update)
    before = {name: views[name].clone() for name in ("users", "raters") if name in views}
    first = is_first(model, parameters)
    if update.is_floating_point():
        for name, view in views.items():
            view.copy_(found[name])
    else:
        bits = found["sums"][: 2 * layout.shared_size].to(torch.int16).cpu().numpy().view(np.float32)
        views["sums"][: layout.shared_size] = torch.from_numpy(bits.copy()).to(parameters.device)
        if first:
            low, high, biases = found["users"][:, :3].to(parameters.dtype).unbind(1)
            _start_users(layout, views, (low + high * 2.0**15) / 2, biases / 2**TARGET_BITS)
        else:
            at = 2 * layout.shared_size
            exponents = found["sums"][at : at + layout.released].to(parameters.dtype)
            columns = torch.cat([found[name] for name in before], 1).to(parameters.dtype)
            columns = columns * _powers_of_two(exponents).to(columns)
            for name, part in zip(
                before, torch.split(columns, [v.shape[1] for v in before.values()], 1), strict=True
            ):
                views[name].add_(part)
    for name, values in before.items():
        moved[name].copy_(torch.zeros_like(values) if first else views[name] - values)
