r"""A curious party reads which items other parties' users have from the updates of the public tables (part of `verfedgnn audit`).

Every public table has a row per user, and every party receives the sum of its protected gradients in every round:

.. math::
    x_u^t = \sum_{v \in N(u)} q_{uv} a_v^t + \text{noise}

====================  ==========================================  ==============================
table                 a_v, the same for all users of item v       q_uv
====================  ==========================================  ==============================
`rater_marks` y       gradient of h_v's argument over sqrt(N_v)   1
`rater_values` z      the same                                    f_uv, the rating less its mean
`rater_users` w       h_v of the second model                     the error of a prediction
`users` e             item embedding                              the error of a prediction
====================  ==========================================  ==============================

Noise is that of ternary gradients and, for a single party, what the parties beside the target add.
Who: a party, or all parties but the target. Needs: fake accounts at the target, one item each, whose rows show a_v; or an
insider's knowledge of a_v in every round, the most that can be known. Tries to learn: which items a user has.

Shapes: V victims, A fake accounts, M items of the target, T rounds, C columns of a table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.data import PartyData
from verfedgnn.privacy.gradient_protection import invert_rescale
from verfedgnn.privacy.rating_dp import unit
from verfedgnn.protocol.round.replica import Replica
from verfedgnn.research.attacks.adversaries import plant
from verfedgnn.research.attacks.noisy_sums import TOGETHER, in_modes, time_modes
from verfedgnn.research.attacks.paper_attacks import choose_victims
from verfedgnn.research.attacks.recording import ObservableParty, RecordedFederation, record_federation
from verfedgnn.research.attacks.sum_attacks import held_out_items, judge_odds
from verfedgnn.research.attacks.sum_view import Who
from verfedgnn.runs.prepared_data import split_ratings

How = Literal["insider", "fakes"]
MODES = 64
"""Number of time modes to keep of fake accounts' rows. Modes that are mostly noise are shrunk to nothing."""
QUIETEST = 0.1
"""Smallest noise of a user's row, as a share of the mean over users."""


@dataclass(frozen=True)
class PublicTable:
    """A public table, and the mean and variance of q_uv among the users who have an item."""

    name: str
    mean: float
    variance: float


TABLES = (
    PublicTable("rater_marks", 1.0, 0.0),
    PublicTable("rater_values", 0.0, 1.0),
    PublicTable("rater_users", 0.0, 1.0),
    PublicTable("users", 0.0, 1.0),
)
"""Ratings and errors are in units of about one star, so their variances are about 1."""


@dataclass(frozen=True)
class TableSeries:
    """What is recorded of one table, in units of its gradient."""

    victims: Mapping[Who, Tensor]
    """The victims' rows (V, T, C) that remain of the sums without the attackers' own parts."""
    fakes: Tensor
    """The fake accounts' rows (A, T, C). They have ratings at the target only, so both kinds of attackers see the same."""
    own: Tensor
    """The victims' rows (V, T, C) of the single attacker's own gradient, before protection."""
    own_atoms: Tensor
    """a_v of the single attacker's own items."""
    atoms: Tensor
    """a_v (M, T, C) of the target: the truth, which an insider would know."""


def attack_tables(
    parties: Sequence[PartyData],
    config: Config,
    *,
    rounds: int,
    copies: int = 1,
    attacker: int = 0,
    target: int = 1,
    victims: int = 500,
    seed: int = 0,
    method: str = "",
    watch: Callable[[int, int], None] = lambda round, rounds: None,
) -> dict[str, dict[str, float | None]]:
    """Record `rounds` of a training with `copies` fake accounts for each of the target's items, and return AUCs by attack.

    A name is "who, how, tables": who is `party` or `colluders` (all parties but the target), how is `fakes` or `insider`, and
    tables is the name of a table or `all tables`. With `method`, only attacks whose "who, how" contains it are run. `judge_odds`
    explains the figures. Every round covers all users.
    """
    config = config.with_values({"training.user_blocks": 1})
    rng = np.random.default_rng([seed, 7])
    parts = [split_ratings(party, config.split, config.seed) for party in parties]
    planted = plant(parties, parts, target=target, share=1.0, rng=rng, copies=copies)
    federation = record_federation(planted.parties, config, parts=planted.parts)
    truth = federation.parties[target].neighbours[: planted.honest]
    chosen = torch.from_numpy(choose_victims(truth, victims, rng))
    series = _record(federation, attacker, target, chosen, torch.from_numpy(planted.users), rounds, watch)
    held = held_out_items(federation, target)[chosen]
    popularity = truth.sum(0)
    share = (popularity / len(truth)).double().clamp(1e-4, 0.9)
    place = torch.from_numpy(planted.items)
    found = {}
    for who in ("party", "colluders"):
        beside = len(parties) - 2 if who == "party" else 0
        for how in ("fakes", "insider"):
            if method not in f"{who}, {how}":
                continue
            odds = share.logit().repeat(len(chosen), 1)
            told = {
                table.name: item_evidence(series[table.name], table, who, how, place, beside, share)
                for table in TABLES
                if table.name in series
            }
            told["all tables"] = torch.stack(list(told.values())).sum(0)
            for name, evidence in told.items():
                found[f"{who}, {how}, {name}"] = judge_odds(odds + evidence, truth[chosen], held, popularity)
    return found


def _record(
    federation: RecordedFederation,
    attacker: int,
    target: int,
    victims: Tensor,
    fakes: Tensor,
    rounds: int,
    watch: Callable[[int, int], None],
) -> dict[str, TableSeries]:
    """Run the training and keep what the attackers see of the victims' and fake accounts' rows, by table."""
    model = federation.coordinator.model
    parties = federation.parties
    names = [table.name for table in TABLES if table.name in model.per_user]
    worth = _worth_of_one(parties[0].replica)
    kept: dict[tuple[str, str], list[Tensor]] = {}
    for number in range(1, rounds + 1):
        trip = federation.round()
        sent = {
            p: party.read_own_gradient(reply.gradient)
            for p, party in enumerate(parties)
            if (reply := trip.replies.get(party.name)) is not None and reply.gradient is not None
        }
        others = _views(federation, [values for p, values in sent.items() if p != attacker])
        remaining = _views(federation, [values for p, values in sent.items() if p == target])
        own = model.views(parties[attacker].gradient)
        own_atoms = item_atoms(parties[attacker], number)
        atoms = item_atoms(parties[target], number)
        for name in names:
            for kind, rows in (
                ("party", others[name][victims] * worth),
                ("colluders", remaining[name][victims] * worth),
                ("fakes", remaining[name][fakes] * worth),
                ("own", own[name][victims]),
                ("own_atoms", own_atoms[name]),
                ("atoms", atoms[name]),
            ):
                kept.setdefault((name, kind), []).append(rows.clone())
        watch(number, rounds)
    return {
        name: TableSeries(
            {
                "party": torch.stack(kept[name, "party"], 1),
                "colluders": torch.stack(kept[name, "colluders"], 1),
            },
            *(torch.stack(kept[name, kind], 1) for kind in ("fakes", "own", "own_atoms", "atoms")),
        )
        for name in names
    }


def _views(federation: RecordedFederation, sent: Sequence[Any]) -> Mapping[str, Tensor]:
    """Return the sum of sent gradients by public parameter."""
    total = sum(
        (np.asarray(values, np.float32) for values in sent),
        np.zeros(federation.coordinator.model.size, np.float32),
    )
    return federation.coordinator.model.views(torch.from_numpy(total))


def _worth_of_one(replica: Replica) -> float:
    """Return the gradient of a user's row that 1 in a sent gradient is worth."""
    config = replica.config
    if config.gradients.mechanism == "skellam":
        return 1 / unit(config)
    return invert_rescale(config.gradients, replica.rescale, 1.0).users


def item_atoms(party: ObservableParty, round: int) -> dict[str, Tensor]:
    r"""Return a_v (M, C) of each table in a round that the party has computed.

    .. math::
        a_v = (1 - h_v^2) \frac{1}{\sqrt{N_v}} \sum_{u \in N(v)} e_{uv} w_u \quad \text{for y and z}

    e_uv is the derivative of the loss by the prediction. With several reads in a round, it is the average over them.
    """
    private = party.now.private
    found = {"users": private["items"]}
    model = party.model
    if model.raters is None:
        return found
    batch = party.batch(round)
    assert batch.read is not None
    training = party.config.training
    graph = party.edges
    public = {name: view.unsqueeze(0) for name, view in model.views(party.now.public).items()}
    own = {name: value.unsqueeze(0) for name, value in private.items()}
    atoms = []
    vectors = []
    for read in batch.read:
        users, items = model.raters.propagate(public, own, graph, read / training.read)
        errors = (graph.products(users, items) - batch.pairs.rating) * (1 - read) * 2 / (1 - training.read)
        vectors.append(items[0, :, : model.raters.hidden])
        back = graph.sum_users(public["rater_users"], errors)[0]
        atoms.append((1 - vectors[-1].square()) * back * graph.item_degree[0].rsqrt())
    atom = torch.stack(atoms).mean(0)
    return {
        **found,
        "rater_marks": atom,
        "rater_values": atom,
        "rater_users": torch.stack(vectors).mean(0),
    }


def item_evidence(
    series: TableSeries, table: PublicTable, who: Who, how: How, items: Tensor, beside: int, share: Tensor
) -> Tensor:
    r"""Return the log likelihood ratios (V, M) of having an item, from one table.

    `items` (A,) are those of the fake accounts, `beside` is the number of parties in the sums beside the target, and `share`
    (M,) the share of users who have each item.

    1. Noise is half the mean square of the rows' change from one round to the next. It is larger in the first rounds, so
       everything is divided by its root in each round. What is left differs between users.
    2. Fake accounts: rows are reduced to the time modes of the attacker's own atoms. The error of an atom that is estimated from
       them counts as noise of the rows.
    3. Whitened rows and atoms are multiplied; the covariance K of what other parties add to the products is that of the
       attacker's own rows times their number.
    """
    rows = series.victims[who]
    even = _noise(rows, (0, 2)).rsqrt().unsqueeze(1)  # (T, 1)
    rows = rows * even
    noise = _noise(rows, (1, 2))
    base = float(noise.mean())
    own = series.own * even
    if how == "insider":
        rows = rows.flatten(1)
        own = own.flatten(1)
        atoms = (series.atoms * even).flatten(1)
        spread = torch.full((atoms.shape[1],), base)
    else:
        modes = time_modes(series.own_atoms * even, MODES)
        rows = in_modes(rows, modes)
        own = in_modes(own, modes)
        atoms, wrong = fake_atoms(series.fakes * even, items, modes)
        spread = base + (table.variance + table.mean**2) * float(share.sum()) * wrong
    white = spread.rsqrt()
    atoms = atoms * white
    along = ((rows * white) @ atoms.T).double()
    gram = (atoms @ atoms.T).double()
    if beside:
        along = along - along.mean(0) + table.mean * (share @ gram)
        added = torch.cov(((own * white) @ atoms.T).double().T) * beside
        ridge = (1e-9 * float(gram.diagonal().mean()) + 1e-30) * torch.eye(len(gram), dtype=gram.dtype)
        filters = torch.linalg.solve(gram + added + ridge, gram)
        along = along @ filters
        gram = gram @ filters
        gram = (gram + gram.T) / 2
    return _likelihood_ratios(along, gram, (noise / base).double().clamp(min=QUIETEST), share, table)


def fake_atoms(fakes: Tensor, items: Tensor, modes: Tensor) -> tuple[Tensor, Tensor]:
    r"""Estimate atoms (M, m C) in time modes (T, m) from the rows (A, T, C) of k fake accounts an item, and their error variances.

    .. math::
        \hat a = \frac{s}{s + \sigma^2 / k} \bar x, \qquad e = \frac{s \sigma^2 / k}{s + \sigma^2 / k}

    s is the mean square of atoms in a mode, estimated from what exceeds the noise.
    """
    count = int(items.max()) + 1
    copies = len(items) / count
    left = float(_noise(fakes, (0, 1, 2))) / copies
    rows = in_modes(fakes, modes)
    mean = torch.zeros(count, rows.shape[1], dtype=rows.dtype).index_add_(0, items, rows) / copies
    columns = fakes.shape[2]
    power = mean.view(count, -1, columns).square().mean((0, 2)) - left
    size = power.clamp(min=0).repeat_interleave(columns)
    return mean * size / (size + left), size * left / (size + left)


def _noise(rows: Tensor, over: tuple[int, ...]) -> Tensor:
    """Return the noise variance of series (V, T, C), averaged over dimensions; some is left where nothing changes."""
    square = rows.square()
    if rows.shape[1] > 1:
        change = rows.diff(dim=1).square() / 2
        square = torch.cat([change[:, :1], change], 1)
    return square.mean(over).clamp(min=1e-6 * float(rows.square().mean()) + 1e-30)


def _likelihood_ratios(
    along: Tensor, gram: Tensor, noise: Tensor, share: Tensor, table: PublicTable
) -> Tensor:
    r"""Return the log likelihood ratios (V, M) of q ~ N(mean, variance) against q = 0.

    .. math::
        p(q | x) \propto \exp \left( (g \cdot q - \tfrac12 q^T G q) / n_u \right) p(q)

    g are the products of a row with the atoms, G those of the atoms. Other items' q are taken as normal.
    """
    mean = share * table.mean
    variance = share * (table.variance + table.mean**2) - mean.square()
    found = []
    for start in range(0, len(along), TOGETHER):
        n = noise[start : start + TOGETHER].unsqueeze(1)
        joint = torch.cholesky_inverse(
            torch.linalg.cholesky(gram / n.unsqueeze(2) + torch.diag(1 / variance))
        )
        width = joint.diagonal(dim1=1, dim2=2)
        middle = (joint @ (along[start : start + TOGETHER] / n + mean / variance).unsqueeze(2)).squeeze(2)
        spread = 1 / (1 / width - 1 / variance).clamp(min=1e-9)
        centre = spread * (middle / width - mean / variance)
        wide = spread + table.variance
        found.append(
            (centre.square() / spread - (centre - table.mean).square() / wide + (spread / wide).log()) / 2
        )
    return torch.cat(found)
