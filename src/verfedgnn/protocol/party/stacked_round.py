"""One trip of a stack of parties: begin, compute, end. A party in its own process is a stack of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from verfedgnn.gnn.model import Model
from verfedgnn.protocol.round.forward_backward import PassInputs, PassResult, compute
from verfedgnn.protocol.round.user_blocks import UserBlock, computes_single_blocks
from verfedgnn.protocol.round.user_subset import SubsetLookup, UserSubset
from verfedgnn.protocol.wire.messages import RoundReply, RoundStart

if TYPE_CHECKING:
    from verfedgnn.protocol.party.party import Party


def answer_trip(
    parties: Sequence[Party], messages: Sequence[RoundStart], lookup: SubsetLookup
) -> list[RoundReply]:
    """Answer one trip of parties that are computed together; `lookup` returns the stack's subset of a block."""
    first = parties[0]
    replica = first.replica
    if first.model.solved is not None:
        return [party.solve(message) for party, message in zip(parties, messages, strict=True)]
    # 1. Each party takes in its message and gathers its inputs.
    inputs = [party.begin(message) for party, message in zip(parties, messages, strict=True)]
    # 2. One forward and backward pass computes the whole stack.
    block = replica.blocks.in_round(messages[0].round)
    single = computes_single_blocks(first.config)
    subset = lookup(block if single else replica.blocks.all_users, True)
    results = run_pass(first, replica.parameters, inputs, subset)
    # 3. A validation needs a pass of its own if it judges averages, or if the first pass left users out.
    validated = results
    apart = first.progress.private.averaged or not subset.covers_all or replica.shard is not None
    if apart and any(message.evaluate for message in messages):
        validated = evaluate_all_users(parties, replica.served, lookup)
    # 4. Only the users of the round leave the party.
    if block.index != subset.block.index:
        place, inside = subset.within(block)
        results = [_select_block(result, place, subset.model) for result in results]
        subset = inside
    # 5. Each party steps its private parameters and protects its reply.
    return [
        party.end(message, result, valid, subset)
        for party, message, result, valid in zip(parties, messages, results, validated, strict=True)
    ]


def evaluate_all_users(parties: Sequence[Party], public: Tensor, lookup: SubsetLookup) -> list[PassResult]:
    """Compute h_u of all users and h_v of all items; users without ratings come last, in groups."""
    first = parties[0]
    inputs = [party.validation_inputs() for party in parties]
    block = first.replica.blocks.all_users
    every = lookup(block, False)
    rated = lookup(block, True)
    results = run_pass(first, public, inputs, rated)
    if rated.rows is None:
        return results
    (result,) = results
    assert result.users is not None
    users = result.users.new_empty(every.model.users, result.users.shape[1])
    users.index_copy_(0, rated.rows, result.users)
    for group in every.remainder(rated):
        (found,) = run_pass(first, public, inputs, group)
        assert group.rows is not None
        assert found.users is not None
        users.index_copy_(0, group.rows, found.users)
    return [replace(result, users=users)]


def run_pass(
    party: Party, public: Tensor, inputs: Sequence[PassInputs], subset: UserSubset
) -> list[PassResult]:
    """Run the pass of a stack of parties for the users of a subset; `party` is any party of the stack."""
    parameters = subset.select_parameters(party.model, public)
    narrowed = [subset.narrow(each) for each in inputs]
    return compute(subset.model, subset.graph, parameters, subset.projection, narrowed, party.config.training)


def _select_block(result: PassResult, place: UserBlock, model: Model) -> PassResult:
    """Select the users of the round from a result about more users; `place` says where they are among these."""
    gradient = result.public_gradient
    private = result.private_gradients
    neighbourhoods = result.neighbourhoods
    return replace(
        result,
        public_gradient=None if gradient is None else place.select_flat(model, gradient),
        private_gradients=private and model.map_private_users(private, lambda value: value[place.users]),
        neighbourhoods=None if neighbourhoods is None else neighbourhoods[:, place.rows],
    )
