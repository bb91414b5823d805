"""One trip of parties that are computed together, or of one by itself: begin, compute, end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from verfedgnn.gnn.model import Model
from verfedgnn.protocol.round.forward_backward import Outcome, Work, compute
from verfedgnn.protocol.round.user_blocks import Part, by_parts
from verfedgnn.protocol.round.user_subset import Scope
from verfedgnn.protocol.wire.messages import RoundReply, RoundStart

if TYPE_CHECKING:
    from verfedgnn.protocol.party.party import Party


def replies(
    parties: Sequence[Party], messages: Sequence[RoundStart], scope: Callable[[Part, bool], Scope]
) -> list[RoundReply]:
    """One trip of parties that are computed together; `scope` gives theirs, stacked, as `Party.scope` gives that of one.

    A party by itself is a stack of one.
    """
    first = parties[0]
    works = [party.begin(message) for party, message in zip(parties, messages, strict=True)]
    replica, rotation = first.replica, first.replica.rotation
    part = rotation.of(messages[0].round)
    here = scope(part if by_parts(first.config) else rotation.everybody, True)
    outcomes = judged = run(first, replica.parameters, works, here)
    if (first.private.averaged or not here.everybody) and any(message.evaluate for message in messages):
        judged = judge(parties, replica.served, scope)
    if part.index != here.part.index:
        place, inside = here.turn(part)
        outcomes, here = [_of_part(outcome, place, here.model) for outcome in outcomes], inside
    return [
        p.end(start, out, seen, here)
        for p, start, out, seen in zip(parties, messages, outcomes, judged, strict=True)
    ]


def judge(parties: Sequence[Party], public: Tensor, scope: Callable[[Part, bool], Scope]) -> list[Outcome]:
    """h_u and h_v of everybody; a party by itself comes to the users it has no ratings of last, some at a time."""
    first, works = parties[0], [party.judged() for party in parties]
    everybody = first.replica.rotation.everybody
    every, some = scope(everybody, False), scope(everybody, True)
    outcomes = run(first, public, works, some)
    if some.rows is None:
        return outcomes
    (outcome,) = outcomes
    assert outcome.users is not None
    users = outcome.users.new_empty(every.model.users, outcome.users.shape[1]).index_copy_(
        0, some.rows, outcome.users
    )
    for left in every.rest(some):
        (found,) = run(first, public, works, left)
        assert left.rows is not None
        assert found.users is not None
        users.index_copy_(0, left.rows, found.users)
    return [replace(outcome, users=users)]


def run(party: Party, public: Tensor, works: Sequence[Work], here: Scope) -> list[Outcome]:
    """The computation of a stack of parties, of which `party` is one, for the users of a scope."""
    cut, narrow = here.cut(party.model, public), [here.narrow(work) for work in works]
    return compute(here.model, here.graph, cut, here.projection, narrow, party.config.training)


def _of_part(outcome: Outcome, place: Part, model: Model) -> Outcome:
    """What concerns the users of a round, where more were computed; `place` says where they are among these."""
    gradient, own, sums = outcome.public_gradient, outcome.private_gradients, outcome.neighbourhoods
    return replace(
        outcome,
        public_gradient=None if gradient is None else place.cut(model, gradient),
        private_gradients=own and {n: g[place.users] if n.startswith("own_") else g for n, g in own.items()},
        neighbourhoods=None if sums is None else sums[:, place.rows],
    )
