"""One round of a model whose items are solved at home: what a party computes, what it releases, and the public step.

The first round shares how many ratings each user has, and the sum of what item means leave of them. Every later round shares the
gradient of the users, and a few small sums. Everything that is summed is an integer of at most 8 bits, so that masks hide it:

- a gradient, divided by the root of n_u + 1 and by the unit of its column, is rounded at random. The units follow from the last round's
  sums, so they are public. The number of parties decides how large a rounded value may be (`largest_rounded`);
- a count, a sum of residuals or a small sum is in fixed point, cut into digits that are small with any number of parties.

Two parties see each other's releases, and a second model tells most about single items: there, parties add noise (`gradients.noise`).
A party with few items shares only the size of a small sum, not its directions, which would be those of its items.

The coordinator computes the step and sends it as integers of 8 bits with an exponent per column, so that all replicas stay
bit-identical on machines whose linear algebra differs in the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.core.graph import Graph
from verfedgnn.core.key_stream import KeyStream, NoiseKey
from verfedgnn.gnn.factor_model import ROUNDS_BEFORE_PRIOR, Estimates, as_product, solve_factors
from verfedgnn.gnn.list_model import choose_strengths, solve_lists
from verfedgnn.gnn.model import BYTES, LIMBS, Model, SolvedLayout
from verfedgnn.gnn.rater_solver import choose_reads, solve_raters
from verfedgnn.privacy.protections import LARGEST_ROUNDED, Protection

LIMB_BASE = 2 * LARGEST_ROUNDED[0] + 1
"""Base of the digits of a number in fixed point: they are at most what every party may release."""
STEPS_PER_DEVIATION = 16
"""Units in the root mean square of a column."""
SUM_BITS = 24
"""Fractional bits of a small sum."""
USER_TABLES = ("users", "raters")
"""Tables that take a step in every round."""
WIDE_LIMBS = 3
"""Limbs of a count, and of a sum of residuals."""
TOTAL_BITS = (1, 10)
"""Fractional bits of a count, and of a sum of residuals."""
UPDATE_BASE = 2**8
"""Number of values that an integer of the public step can have."""
WIDE_BYTES = 3
"""Integers of 8 bits of a count, and of a sum of residuals, on their way back."""
BIAS_DAMPING = 5.0
"""Number of ratings at the mean that a user's first bias counts in addition to its own."""
ITEM_DAMPING = 5.0
"""Number of ratings at the party's mean that an item's mean counts in addition to its own."""
FEWEST_ITEMS = 2
"""Items for each column from which on a party shares the directions of its small sums."""
RATERS_NOISE = 3.0
"""Noise on a gradient of the second model, in multiples of `gradients.noise`."""
TOTALS_NOISE = 4.0
"""Noise on a count and on a sum of residuals, in multiples of `gradients.noise`."""
SUMS_NOISE = 0.1
"""Noise on an entry of a small sum, in multiples of `gradients.noise` and of the entry's size."""

ROWS = 1 << 12
"""Users at a time; real numbers of all users would take several times the memory of the integers."""

Tables = Mapping[str, Tensor]


@dataclass(frozen=True)
class SolvedStep:
    """What a party computed in a round."""

    gradient: Tensor
    """The released columns of all users (N, C); in the first round counts and sums of residuals (N, 2)."""
    sums: dict[str, Tensor]
    """Small sums by name (`SolvedLayout.sum_shapes`), as shares of means over the federation."""
    users: Tensor
    """Users and items whose product predicts, in units of the targets; the mean of two models if there are two."""
    items: Tensor
    private: dict[str, Tensor]
    """The party's items, and its estimates of noise and prior."""


def is_first(model: Model, parameters: Tensor) -> bool:
    """Return whether no public step has been taken yet."""
    return not bool(model.views(parameters)["totals"].any())


class SolvedRound:
    """The arithmetic of a round for one model; `ratings` and `items` count those of all parties."""

    def __init__(self, model: Model, layout: SolvedLayout, ratings: int, items: int) -> None:
        self.model = model
        self.layout = layout
        self.ratings = ratings
        self.items = items

    # -- at home ---------------------------------------------------------------------------------------------

    def solve(
        self, parameters: Tensor, private: Mapping[str, Tensor], graph: Graph, targets: Tensor, drawn: Tensor
    ) -> SolvedStep:
        """Solve a party's items given the public users, and return the users' gradient given the items.

        `targets` are ratings in units of the party's scale, or for lists the weights of pairs, in the order of the graph's edges by
        user. `drawn` holds a uniform number for each, which chooses what the second model reads.
        """
        model, layout, ratings = self.model, self.layout, max(1, self.ratings)
        views = model.views(parameters)
        first = is_first(model, parameters)
        if layout.config.form == "means":
            totals = own_totals(model, graph, targets)
            sums = {name: torch.zeros(shape).to(totals) for name, shape in layout.sum_shapes.items()}
            nothing = totals.new_zeros((graph.users, 1)), totals.new_zeros((graph.items, 1))
            return SolvedStep(totals, sums, *nothing, dict(private))
        continues = first and bool(views["users"][:, -1].any())
        if first:
            totals = own_totals(model, graph, targets)
            views = {name: view.clone() for name, view in views.items()}
            _start_users(layout, views, totals)
        zero = {name: torch.zeros_like(view) for name, view in views.items()}
        home = private["home"][0]
        if layout.lists:
            strengths = choose_strengths(model.users, self.items, self.ratings)
            lists = solve_lists(graph, targets, views["users"], strengths)
            gradient, solved = lists.gradient, lists.items
            served = views["users"], solved
            sums = {"gram": torch.stack([lists.gram[0] / ratings, lists.gram[1] / max(1, self.items)])}
        else:
            kept = Estimates(rounds=ROUNDS_BEFORE_PRIOR if continues else 0)
            if home[0] > 0:
                kept = Estimates(float(home[0]), home[2:] if home[2] > 0 else None, int(home[1]))
            factors = solve_factors(graph, targets, layout.factors(views, zero), kept)
            kept, solved = factors.estimates, factors.items
            prior = torch.zeros_like(home[2:]) if kept.prior is None else kept.prior
            home = torch.cat([torch.tensor([kept.noise, kept.rounds]).to(prior), prior])
            gradient, sums = factors.gradient, {"gram": factors.gram / ratings}
            served = as_product(views["users"], solved)
            if layout.rater_columns:
                raters = solve_raters(graph, targets, layout.raters(views, zero), choose_reads(drawn))
                assert graph.values is not None
                gradient = torch.cat([gradient, raters.gradient], 1)
                sums["rater_gram"] = raters.gram / ratings
                sums["deviation"] = graph.values.square().sum().view(1) / ratings
                predict, read = as_product(layout.raters(views, zero).split()[0], raters.items)
                served = torch.cat([served[0], predict], 1), torch.cat([served[1], read], 1) / 2
        sums = {
            name: _hide_directions(total, graph.items, lists=layout.lists) for name, total in sums.items()
        }
        sums["moments"] = (gradient / (views["totals"][:, :1] + 1).sqrt()).square().mean(0)
        return SolvedStep(
            totals if first else gradient, sums, *served, {"items": solved, "home": home.unsqueeze(0)}
        )

    def encode_release(
        self, parameters: Tensor, step: SolvedStep, protection: Protection, key: NoiseKey
    ) -> NDArray[Any]:
        """Return a party's release, before masks: integers, or real numbers without protection."""
        layout, noise, largest = self.layout, protection.noise, protection.largest
        views = self.model.views(parameters)
        sums = torch.cat([step.sums[name].flatten() for name in layout.sum_shapes]).cpu().double()
        gradient = step.gradient.cpu()
        if not largest:
            return self._join(sums, gradient, torch.float32)
        stream = key.stream("rounded")
        if noise:
            sizes = torch.cat([_noise_size(step.sums[name]).flatten() for name in layout.sum_shapes])
            sums = sums + SUMS_NOISE * noise * sizes.double() * _normal(stream, sums)
        digits = _to_limbs(sums * 2**SUM_BITS, LIMBS, LIMB_BASE).flatten()
        if is_first(self.model, parameters):
            if noise:
                gradient = gradient + TOTALS_NOISE * noise * _normal(stream, gradient)
                gradient[:, 0] += TOTALS_NOISE * noise  # a number that is too small makes steps too long
            totals = _totals_to_limbs(gradient, WIDE_LIMBS, LIMB_BASE)
            return self._join(digits, totals).astype(protection.sum_type, copy=False)
        units = layout.shared(views["sums"])["units"].cpu().double()
        root = (views["totals"][:, :1].cpu().double() + 1).sqrt()
        blur = None
        if noise:
            blur = noise * STEPS_PER_DEVIATION * _normal(stream, gradient)
            if layout.rater_columns:
                blur[:, layout.columns :] *= RATERS_NOISE
        released = torch.empty(gradient.shape, dtype=torch.int16)
        for start in range(0, len(released), ROWS):
            rows = slice(start, start + ROWS)
            scaled = gradient[rows] / (root[rows] * units)
            if blur is not None:
                scaled = scaled + blur[rows]
            drawn = torch.from_numpy(stream.uniform(tuple(scaled.shape)))
            released[rows] = (scaled + drawn).floor().clamp(-largest, largest)
        return self._join(digits, released).astype(protection.sum_type, copy=False)

    def _join(self, sums: Tensor, columns: Tensor, kind: torch.dtype = torch.int16) -> NDArray[Any]:
        """Return a release or an update: `sums`, and the `columns` of the users (N, C) or fewer, in the model's flat form."""
        tables = {name: torch.zeros(shape, dtype=kind) for name, shape in self.model.shapes.items()}
        tables["sums"][: len(sums)] = sums
        for name in USER_TABLES:
            if name in tables:
                part, columns = columns.tensor_split([tables[name].shape[1]], 1)
                tables[name][:, : part.shape[1]] = part
        return self.model.flat(tables).numpy()

    # -- the public step -------------------------------------------------------------------------------------

    def compute_update(self, parameters: Tensor, velocity: Tensor, total: Tensor) -> NDArray[Any]:
        """Return the update of the public parameters that follows from the sum of all parties' releases."""
        model, layout = self.model, self.layout
        exact, first = total.is_floating_point(), is_first(model, parameters)
        old, sums = model.views(parameters), self._read_sums(total)
        new = {name: view.clone() for name, view in old.items()}
        shared = layout.shared(new["sums"])
        if first:
            totals = read_totals(model, total).to(parameters)
            totals[:, 0].clamp_(min=0)
            _start_users(layout, new, totals)
            if not layout.lists:
                shared["gram"].copy_(sums["gram"] * self.ratings / totals[:, 0].sum().clamp(min=1))
        else:
            released = model.views(total)
            columns = torch.cat([released[name] for name in USER_TABLES if name in released], 1).to(
                parameters
            )
            if not exact:
                columns = columns * shared["units"] * (old["totals"][:, :1] + 1).sqrt()
            self._step(old, model.views(velocity), columns, sums, new)
        shared["units"].copy_(sums["moments"].clamp(min=1e-12).sqrt() / STEPS_PER_DEVIATION)
        if exact:
            return model.flat(new).cpu().numpy()
        # Steps travel in 8 bits with an exponent per column, shared values as their bytes.
        values = new["sums"][: layout.shared_size].cpu().contiguous().numpy()
        small = torch.from_numpy(values.view(np.int8))
        if first:
            return self._join(small, _totals_to_limbs(new["totals"].cpu(), WIDE_BYTES, UPDATE_BASE))
        steps = torch.cat([(new[name] - old[name]).cpu() for name in USER_TABLES if name in old], 1)
        largest = steps.abs().amax(0).double().clamp(min=2.0**-60)
        exponents = torch.ceil(torch.log2(largest / (UPDATE_BASE // 2 - 1)))
        rounded, powers = torch.empty(steps.shape, dtype=torch.int16), exponents.numpy().astype(np.int32)
        for start in range(0, len(steps), ROWS):
            rows = slice(start, start + ROWS)
            rounded[rows] = torch.from_numpy(np.ldexp(steps[rows].double().numpy(), -powers)).round()
        return self._join(torch.cat([small.double(), exponents]), rounded)

    def _read_sums(self, total: Tensor) -> dict[str, Tensor]:
        """Return the small sums in a sum of releases, by name."""
        shapes = self.layout.sum_shapes
        sizes = list(map(math.prod, shapes.values()))
        flat = self.model.views(total)["sums"]
        if total.is_floating_point():
            flat = flat[: sum(sizes)]
        else:
            flat = _from_limbs(flat[: LIMBS * sum(sizes)].view(-1, LIMBS), LIMB_BASE).double() / 2**SUM_BITS
        parts = zip(shapes.items(), torch.split(flat.float(), sizes), strict=True)
        return {name: part.view(shape) for (name, shape), part in parts}

    def _step(self, views: Tables, velocity: Tables, columns: Tensor, sums: Tables, new: Tables) -> None:
        """Take the preconditioned step of every table, in `new`."""
        layout, ratings = self.layout, self.ratings
        if layout.lists:
            public = layout.public_lists(views, velocity, ratings, self.items)
            scale = torch.tensor([ratings, self.items]).to(columns).view(2, 1, 1)
            new["users"].copy_(public.step(columns, sums["gram"] * scale).users)
            return
        width = layout.columns
        shared = layout.shared(new["sums"])
        factors = layout.factors(views, velocity).step(columns[:, :width], sums["gram"] * ratings)
        new["users"].copy_(factors.users)
        shared["gram"].copy_(factors.gram)
        shared["prior"].copy_(factors.prior)
        if layout.rater_columns:
            raters = layout.raters(views, velocity).step(
                columns[:, width:], sums["rater_gram"] * ratings, float(sums["deviation"])
            )
            new["raters"].copy_(raters.tables)

    def apply_update(self, parameters: Tensor, velocity: Tensor, update: Tensor) -> None:
        """Apply an update to the public parameters in place, and note the step that each table took in `velocity`."""
        model, layout = self.model, self.layout
        views, moved, steps = model.views(parameters), model.views(velocity), model.views(update)
        before = {name: views[name].clone() for name in USER_TABLES if name in views}
        first = is_first(model, parameters)
        if update.is_floating_point():
            for name, view in views.items():
                view.copy_(steps[name])
        else:
            size = BYTES * layout.shared_size
            shared = steps["sums"][:size].to(torch.int8).cpu().numpy().view(np.float32)
            views["sums"][: layout.shared_size] = torch.from_numpy(shared.copy()).to(parameters.device)
            if first:
                totals = _totals_from_limbs(steps["users"], WIDE_BYTES, UPDATE_BASE)
                _start_users(layout, views, totals.to(parameters))
            else:
                exponents = steps["sums"][size : size + layout.released].cpu().numpy().astype(np.int32)
                powers = torch.from_numpy(np.ldexp(1.0, exponents)).to(parameters)  # exact on every machine
                parts = torch.split(powers, [values.shape[1] for values in before.values()])
                for name, part in zip(before, parts, strict=True):
                    views[name].add_(steps[name].to(part) * part)
        for name, values in before.items():
            moved[name].copy_(torch.zeros_like(values) if first else views[name] - values)


# -- what a party has, and what hides it -------------------------------------------------------------------------


def own_totals(model: Model, graph: Graph, targets: Tensor) -> Tensor:
    """Return the number of each user's ratings at a party, and the sum of what item means leave of them (N, 2).

    For lists, they are the sum of the pairs' weights, and 0.
    """
    edges = graph.edge_users.long()
    empty = torch.zeros(graph.users).to(targets)
    if model.solved is not None and model.solved.lists:
        return torch.stack([empty.index_add(0, edges, targets), empty], 1)
    one = torch.ones((graph.users, 1)).to(targets)
    degree = graph.by_item[0].diff().to(targets).unsqueeze(1)
    means = graph.sum_users(one, targets) / (degree + ITEM_DAMPING)
    left = targets - graph.products(one, means)
    return torch.stack([graph.user_degree[:, 0].to(targets), empty.index_add(0, edges, left)], 1)


def _start_users(layout: SolvedLayout, views: Tables, totals: Tensor) -> None:
    """Set counts and first biases in place; users without ratings start at 0.

    A training that continues another one keeps that one's biases.
    """
    views["totals"].copy_(totals)
    rated = totals[:, :1] > 0
    for name in USER_TABLES:
        if name in views:
            views[name].mul_(rated)
    if layout.lists:
        return
    first = totals[:, 1] / (totals[:, 0] + BIAS_DAMPING)
    for name, place in (("users", -1), ("raters", layout.config.raters)):
        if name in views:
            column = views[name][:, place]
            column.copy_(torch.where(column == 0, first, column))


def _hide_directions(total: Tensor, items: int, *, lists: bool) -> Tensor:
    """Return sums of outer products (..., K, K) of a party with so many items, without their directions if the items are few.

    Every direction then has the largest curvature of all, so that no step is too long. The last column of a model of ratings is
    constant, and keeps its hidden.
    """
    columns = total.shape[-1]
    if total.shape[-2:-1] != (columns,) or items >= FEWEST_ITEMS * columns:
        return total
    hidden = columns if lists else columns - 1
    largest = torch.linalg.matrix_norm(total[..., :hidden, :hidden], 2)
    diagonal = torch.cat([largest.unsqueeze(-1).expand(*largest.shape, hidden), total[..., -1, hidden:]], -1)
    return torch.diag_embed(diagonal)


def _noise_size(total: Tensor) -> Tensor:
    """Return the size of each entry of a small sum, to which its noise is proportional: by its row and column, or the entry itself."""
    if total.shape[-1:] != total.shape[-2:-1]:
        return total.cpu()
    root = total.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()
    return (root.unsqueeze(-1) * root.unsqueeze(-2)).cpu()


def _normal(stream: KeyStream, like: Tensor) -> Tensor:
    """Draw as many normal numbers as there are in `like` from a stream of uniform ones (Box and Muller)."""
    radius, angle = (torch.from_numpy(stream.uniform(tuple(like.shape))) for _ in range(2))
    return (-2 * torch.log1p(-radius)).sqrt() * torch.cos(2 * torch.pi * angle)


# -- integers that travel ----------------------------------------------------------------------------------------


def _totals_to_limbs(totals: Tensor, limbs: int, base: int) -> Tensor:
    """Return counts and sums of residuals (N, 2) as digits (N, 2 x limbs)."""
    units = torch.tensor([2.0**bits for bits in TOTAL_BITS], dtype=torch.float64)
    return _to_limbs(totals.double() * units, limbs, base).flatten(1)


def _totals_from_limbs(users: Tensor, limbs: int, base: int) -> Tensor:
    """Return the counts and sums of residuals (N, 2) whose digits, or sums of digits, are the first columns of `users`."""
    digits = users[:, : 2 * limbs].reshape(-1, 2, limbs)
    return _from_limbs(digits, base) / 2.0 ** torch.tensor(TOTAL_BITS).to(digits)


def _to_limbs(values: Tensor, limbs: int, base: int) -> Tensor:
    """Cut rounded numbers into `limbs` signed digits, the lowest first: (...,) -> (..., limbs). A digit is at least -(base // 2)."""
    limit = LIMB_BASE**limbs // 2
    values = values.round().clamp(-limit, limit).to(torch.int64)
    digits = []
    for _ in range(limbs):
        digit = (values + base // 2) % base - base // 2
        digits.append(digit)
        values = (values - digit) // base
    return torch.stack(digits, -1)


def _from_limbs(digits: Tensor, base: int) -> Tensor:
    """Return the integers of which `_to_limbs` made the digits (..., limbs), or their sums."""
    places = torch.tensor([base**place for place in range(digits.shape[-1])], device=digits.device)
    return (digits.to(torch.int64) * places).sum(-1)


def read_totals(model: Model, total: Tensor) -> Tensor:
    """Return counts and sums of residuals (N, 2) in a release of the first round, or in a sum of releases."""
    rows = model.views(total)["users"]
    return rows[:, :2] if total.is_floating_point() else _totals_from_limbs(rows, WIDE_LIMBS, LIMB_BASE)
