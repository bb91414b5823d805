"""What attackers see of the users' rows in a training, and what an insider would know.

    watch_releases(federation, ...) -> ReleaseView

If items are solved at home (`docs/model.md`), rows are in released units: a gradient divided by the root of n_u + 1 and by its
column's unit. Rounding then has a known variance. Of other models, rows are sums of protected gradients of user embeddings.

A party receives the public step, from which it computes the sum. Here it knows the sum exactly, the most that can be known.

Shapes: R rows (victims, then fake accounts), T rounds after the first, C released columns, M items of the target, K columns of a user.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.gnn.factor_model import as_product
from verfedgnn.gnn.list_model import choose_strengths
from verfedgnn.gnn.model import Model
from verfedgnn.gnn.rater_solver import READ, choose_reads, read_items, solve_raters
from verfedgnn.protocol.solved_round import RATERS_NOISE, STEPS_PER_DEVIATION, USER_TABLES
from verfedgnn_research.attacks.recording import ObservableParty, RecordedFederation

Who = Literal["party", "colluders"]
"""Who attacks: one party alone, or all parties but the target. Of two parties, either is both."""
WHO: tuple[Who, Who] = ("party", "colluders")
ROUNDING = 1 / 6
"""Mean variance of rounding at random, in released units."""


@dataclass(frozen=True)
class ItemSeries:
    """What every item adds to its users' rows: known to an insider, or estimated from fake accounts."""

    vectors: Tensor
    """e_v, or x_v of lists (M, T, D)."""
    bias: Tensor
    """b_v (M, T); 0 where it is not known."""
    noise: Tensor
    """sigma_p^2 (T,)."""
    read: Tensor | None = None
    """(h_v, b_v, a_v) of the second model (M, T, 2H + 1): a_v is what a rating that is read adds to y_u."""
    pull: Tensor | None = None
    """What the uncertainty of items takes from a user's gradient, for each of its ratings: (T, K, D), times (e_u, 1)."""

    def take(self, items: Tensor) -> ItemSeries:
        """Return some of the items."""
        read = None if self.read is None else self.read[items]
        return replace(self, vectors=self.vectors[items], bias=self.bias[items], read=read)


@dataclass(frozen=True)
class ReleaseView:
    """A recorded training."""

    kind: Literal["ratings", "lists", "steps"]
    """The model: of ratings or lists with items solved at home, or one that is trained by steps."""
    parties: int
    rows: Mapping[Who, Tensor]
    """What remains of the sums without the attackers' own parts (R, T, C). Lists: without what unseen pairs add."""
    own: Tensor
    """The single attacker's own part of all users' rows (N, T, C)."""
    scale: Tensor
    """What one released unit is worth (R, T, C)."""
    users: Tensor
    """Public (e_u, b_u), or x_u of lists, before each release (R, T, K)."""
    raters: Tensor | None
    """Public (w_u, b_u) of the second model (R, T, H + 1)."""
    exact: Mapping[Who, Tensor]
    """The same as `rows` before rounding and noise: the truth; empty for models trained by steps."""
    added: Tensor
    """Standard deviation of the noise that each party adds to a row (C,)."""
    own_items: ItemSeries
    target_items: ItemSeries
    """The truth, which an insider would know."""

    def variance(self, who: Who) -> Tensor:
        """Return the variance of what protects a row (C,): rounding and noise of all parties that remain in a sum.

        For models trained by steps it is half the mean square of a row's change from one round to the next.
        """
        if self.kind == "steps":
            return (self.rows[who].diff(dim=1).square().mean() / 2).clamp(min=1e-6)
        return (self.parties - 1 if who == "party" else 1) * (ROUNDING + self.added**2)


def watch_releases(
    federation: RecordedFederation,
    *,
    attacker: int,
    target: int,
    chosen: Tensor,
    rounds: int,
    watch: Callable[[int, int], None] = lambda round, rounds: None,
) -> ReleaseView:
    """Run `rounds` rounds, at least two, and keep what attackers see of the rows `chosen` (R,)."""
    parties = federation.parties
    model = federation.coordinator.model
    layout = model.solved
    kept: dict[str, list[Tensor]] = {}
    items: dict[int, list[ItemSeries]] = {attacker: [], target: []}
    for number in range(1, rounds + 1):
        trip = federation.round()
        sent = [
            torch.from_numpy(party.read_own_gradient(np.asarray(trip.replies[party.name].gradient)).copy())
            for party in parties
        ]
        public = model.views(parties[0].now.public)
        if number == 1 and layout is not None:  # releases counts
            continue
        _keep_rows(kept, federation, sent, attacker, target, chosen)
        kept.setdefault("users", []).append(public["users"][chosen].clone())
        if layout is not None and layout.rater_columns:
            kept.setdefault("raters", []).append(public["raters"][chosen, : layout.config.raters + 1].clone())
        for p, found in items.items():
            found.append(known_items(parties[p]))
        watch(number, rounds)
    series = {name: torch.stack(found, 1) for name, found in kept.items()}
    return ReleaseView(
        kind="steps" if layout is None else "lists" if layout.lists else "ratings",
        parties=len(parties),
        rows={who: series[who] for who in WHO},
        own=series["own"],
        scale=series["scale"],
        users=series["users"],
        raters=series.get("raters"),
        exact={who: series[f"exact {who}"] for who in WHO if f"exact {who}" in series},
        added=_added_noise(federation.config, len(parties), series["own"].shape[2]),
        own_items=_stack(items[attacker]),
        target_items=_stack(items[target]),
    )


def _added_noise(config: Config, parties: int, columns: int) -> Tensor:
    """Return the standard deviation of a party's noise in released units (C,)."""
    added = torch.full((columns,), STEPS_PER_DEVIATION * config.noise_of(parties))
    if config.model.solved and not config.ranks:
        added[config.model.dim + 1 :] *= RATERS_NOISE
    return added


def _remaining(sent: Sequence[Tensor], attacker: int, target: int) -> dict[Who, Tensor]:
    """Return what remains of the sum of all parties' values without the attackers' own."""
    return {
        "party": torch.stack([values for p, values in enumerate(sent) if p != attacker]).sum(0),
        "colluders": sent[target],
    }


def _keep_rows(
    kept: dict[str, list[Tensor]],
    federation: RecordedFederation,
    sent: Sequence[Tensor],
    attacker: int,
    target: int,
    chosen: Tensor,
) -> None:
    """Keep what remains of one round's rows."""
    parties = federation.parties
    model = federation.coordinator.model
    layout = model.solved
    remaining = _remaining(sent, attacker, target)
    if layout is None:
        for who, total in remaining.items():
            kept.setdefault(who, []).append(model.views(total)["users"][chosen].float())
        kept.setdefault("own", []).append(model.views(sent[attacker])["users"].float())
        kept.setdefault("scale", []).append(torch.ones_like(kept["party"][-1]))
        return
    public = model.views(parties[0].now.public)
    deep = (public["totals"][chosen, :1] + 1).sqrt() * layout.shared(public["sums"])["units"]
    exact = _remaining([party.step.gradient[chosen] / deep for party in parties], attacker, target)
    unseen = choose_strengths(model.users, sum(parties[0].replica.items), parties[0].replica.ratings).unseen
    # Unseen pairs add x_u times a matrix, which accounts without ratings at the target show.
    solved = [party.progress.private.parameters["items"] for party in parties]
    every = _remaining([items.T @ items for items in solved], attacker, target)
    for who, total in remaining.items():
        rows = read_columns(model, total)[chosen].float()
        if layout.lists:
            known = unseen * public["users"][chosen] @ every[who] / deep
            rows, exact[who] = rows + known, exact[who] + known
        kept.setdefault(who, []).append(rows)
        kept.setdefault(f"exact {who}", []).append(exact[who])
    kept.setdefault("own", []).append(read_columns(model, sent[attacker]).float())
    kept.setdefault("scale", []).append(deep)


def read_columns(model: Model, total: Tensor) -> Tensor:
    """Return the released columns of users (N, C) in a release of a later round, or in a sum of releases."""
    tables = model.views(total)
    return torch.cat([tables[name] for name in USER_TABLES if name in tables], 1)


def known_items(party: ObservableParty) -> ItemSeries:
    """Return what a party's items add to users' rows in the round that it has just computed."""
    model, graph = party.model, party.graph
    layout = model.solved
    private = party.progress.private.parameters
    views = model.views(party.now.public)
    if layout is None:
        items = party.now.private["items"]
        return ItemSeries(items, torch.zeros(len(items)), torch.ones(()))
    if layout.lists:
        items = private["items"].clone()
        return ItemSeries(items, torch.zeros(len(items)), torch.ones(()))
    items, noise = private["items"], private["home"][0, 0].clone()
    last = items.shape[1] - 1
    targets = party.setup.solved_targets
    rated = graph.user_degree[:, 0] > 0
    ones = torch.ones_like(items[:, :1])
    errors = targets - graph.products(*as_product(views["users"], items))
    whole = graph.sum_items(torch.cat([items[:, :last], ones], 1), errors)[:, :last] / noise
    users = torch.cat([views["users"][:, :last], torch.ones_like(views["users"][:, :1])], 1)
    missing = (whole - party.step.gradient[:, :last])[rated] / graph.user_degree[rated]
    pull = torch.linalg.lstsq(users[rated].double(), missing.double()).solution.float()
    read = _read_atoms(party) if layout.rater_columns else None
    return ItemSeries(items[:, :last].clone(), items[:, last].clone(), noise, read, pull)


def _read_atoms(party: ObservableParty) -> Tensor:
    """Return (h_v, b_v, a_v) of the second model (M, 2H + 1), with a_v as a mean over the round's reads."""
    model, graph, targets = party.model, party.graph, party.setup.solved_targets
    layout = model.solved
    assert layout is not None
    views = model.views(party.now.public)
    public = layout.raters(views, {name: torch.zeros_like(view) for name, view in views.items()})
    predict = public.split()[0]
    constant = torch.ones_like(predict[:, :1])
    solved = solve_raters(graph, targets, public, torch.zeros(0, len(targets)))
    hidden, bias = solved.items[:, :-1], solved.items[:, -1:]
    total = torch.zeros_like(hidden)
    reads = choose_reads(party.drawn)
    for read in reads:
        counted = graph.sum_users(constant, read).clamp(min=1)
        seen = read_items(graph, public, read)
        product = torch.cat([seen, torch.ones_like(bias), bias], 1)
        errors = (targets - graph.products(torch.cat([predict, constant], 1), product)) * (1 - read)
        total += graph.sum_users(predict[:, :-1], errors) * (1 - seen.square()) * counted.rsqrt()
    return torch.cat([hidden, bias, READ / (1 - READ) * total / len(reads)], 1)


def _stack(found: list[ItemSeries]) -> ItemSeries:
    read = [each.read for each in found if each.read is not None]
    pull = [each.pull for each in found if each.pull is not None]
    return ItemSeries(
        torch.stack([each.vectors for each in found], 1),
        torch.stack([each.bias for each in found], 1),
        torch.stack([each.noise for each in found]),
        torch.stack(read, 1) if read else None,
        torch.stack(pull) if pull else None,
    )
