"""Masked sums against a coordinator that is curious, lies to some parties, or loses parties at any point (issue 19)."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import verfedgnn as vf
from helpers import federation
from hub import agree
from simulated_federation import Simulation
from verfedgnn.federation.roster import MemberIdentity
from verfedgnn.federation.stores import SurvivorLog
from verfedgnn.privacy.masking import (
    GRADIENT,
    SEED,
    MaskKey,
    recover_seeds,
    remove_masks,
    share_threshold,
)
from verfedgnn.protocol.masks import ListCommitments, MaskedRound, PartyMasks
from verfedgnn.protocol.messages import (
    ListSignature,
    MaskShares,
    RoundShares,
    RoundStart,
    ShareRequest,
    Survivors,
    Unmask,
)
from verfedgnn.protocol.party_state import Policy
from verfedgnn.protocol.states import CoordinatorState

CONFIG = vf.Config.preset("paper", masking=True, exchange="off")
CONTEXT = b"what all parties received"
SIZE = 12


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> list[MemberIdentity]:
    names = [f"party-{i}" for i in range(5)]
    _, found = agree(tmp_path_factory.mktemp("roster"), names, CONFIG, alignment="none")
    return [found[name] for name in names]


def named(place: tuple[int, int]) -> dict[str, int]:
    """Return a place as the fields of a message."""
    return {"round": place[0], "attempt": place[1]}


def relay(attempt: MaskedRound, index: int) -> RoundShares:
    """Return the keys and shares for one party, as the coordinator relays them."""
    shares = [attempt.shares[sender] for sender in attempt.active]
    sealed = np.stack([share.sealed[attempt.active.index(index)] for share in shares])
    return RoundShares(**named(attempt.place), round_keys=[share.key for share in shares], sealed=sealed)


class Table:
    """Parties that talk to a coordinator played by the test, which keeps everything."""

    def __init__(self, identities: list[MemberIdentity], count: int = 4, smallest: int = 2) -> None:
        self.count = count
        policies = [Policy(vouching=identity, smallest=smallest) for identity in identities[:count]]
        self.disks: list[ListCommitments] = [ListCommitments() for _ in policies]
        self.policies = policies
        self.parties: list[PartyMasks] = []
        self.values = np.random.default_rng(7).integers(-1, 2, (count, SIZE)).astype(np.int8)
        self.values[:, 0] = range(count)  # no two parties have the same values
        self.join()

    def join(self) -> None:
        """Let all parties join, as after a restart of the coordinator."""
        self.parties = []
        for index, (policy, disk) in enumerate(zip(self.policies, self.disks, strict=True)):
            self.parties.append(self.stay(index, policy, disk))

    def stay(self, index: int, policy: Policy, disk: ListCommitments) -> PartyMasks:
        party = PartyMasks(f"party-{index}", CONFIG, policy, disk)
        party.join("training", index, self.count)
        return party

    def request(self, attempt: MaskedRound) -> ShareRequest:
        chosen = [self.parties[index] for index in attempt.active]
        return ShareRequest(
            **named(attempt.place),
            request=attempt.request,
            active=attempt.active,
            mask_keys=[party.key or "" for party in chosen],
            mask_signatures=[party.signature or "" for party in chosen],
        )

    def share(self, round: int = 1, attempt: int = 0, active: list[int] | None = None) -> MaskedRound:
        """Exchange the shares of an attempt."""
        attempt = MaskedRound((round, attempt), list(range(self.count)) if active is None else active)
        for index in attempt.active:
            shares = self.parties[index].share(self.request(attempt))
            assert isinstance(shares, MaskShares)
            assert attempt.take(index, shares) is None
        for index in attempt.active:
            self.parties[index].take_shares(relay(attempt, index))
        return attempt

    def reply(self, attempt: MaskedRound, index: int) -> NDArray[Any]:
        """Return a party's masked values."""
        start = RoundStart(
            **named(attempt.place), active=attempt.active, evaluate=False, best_round=0,
            updates_from=1, update_parties=[], neighbourhood_parties=[],
        )  # fmt: skip
        masked = self.parties[index].hide(self.values[index], start, CONTEXT, GRADIENT, 8)
        return masked.view(np.int8)

    def ask(
        self, attempt: MaskedRound, index: int, survivors: list[int], signatures: list[str] | None = None
    ) -> Any:
        """Ask a party to unmask a sum."""
        return self.parties[index].unmask(
            Survivors(**named(attempt.place), survivors=survivors, signatures=signatures)
        )

    def sign(self, attempt: MaskedRound, survivors: list[int], by: list[int] | None = None) -> list[str]:
        """Collect the signatures of a list from some of its parties."""
        found = {}
        for index in survivors if by is None else by:
            answer = self.ask(attempt, index, survivors)
            assert isinstance(answer, ListSignature)
            found[index] = answer.signature
        return [found.get(index, "") for index in survivors]

    def unmask(self, attempt: MaskedRound, survivors: list[int]) -> NDArray[Any]:
        """Follow the protocol to the unmasked sum over the survivors."""
        replies = {index: self.reply(attempt, index) for index in survivors}
        attempt.survivors = survivors
        signatures = None if survivors == attempt.active else self.sign(attempt, survivors)
        for index in survivors:
            answer = self.ask(attempt, index, survivors, signatures)
            assert isinstance(answer, Unmask)
            assert attempt.take(index, answer) is None
        total = sum(replies.values(), np.zeros(SIZE, np.int8))
        return remove_masks(total, attempt.streams(CONTEXT), GRADIENT, 8)


@pytest.mark.parametrize("survivors", [[0, 1, 2, 3], [0, 1, 2], [1, 2, 3]])
def test_survivors_get_their_sum(identities: list[MemberIdentity], survivors: list[int]) -> None:
    table = Table(identities)
    total = table.unmask(table.share(), survivors)
    np.testing.assert_array_equal(total, table.values[survivors].sum(0))


def test_a_late_reply_is_useless(identities: list[MemberIdentity]) -> None:
    """Four parties, quorum three, one late reply: no combination of what the coordinator has is one party's values."""
    table = Table(identities)
    attempt = table.share()
    late = table.reply(attempt, 3)
    replies = [table.reply(attempt, index) for index in range(3)]
    survivors = [0, 1, 2]
    np.testing.assert_array_equal(table.unmask(attempt, survivors), table.values[:3].sum(0))
    with pytest.raises(vf.ProtocolError, match="not part of"):
        table.ask(attempt, 3, survivors)
    known = attempt.streams(CONTEXT)  # those of the lost party, too, since the coordinator recovered its seed
    masks = [stream.draw(GRADIENT, slice(0, SIZE), 1).view(np.int8) for stream in known]
    items = np.array([*replies, late, *masks], np.int8)
    combinations = np.array(list(itertools.product((-1, 0, 1), repeat=len(items))), np.int8)
    found = {row.tobytes() for row in combinations @ items}
    assert table.values[survivors].sum(0).astype(np.int8).tobytes() in found, "the sum is there"
    assert not any(values.tobytes() in found for values in table.values)


def test_a_further_attempt_is_over_the_same_parties_or_refused(identities: list[MemberIdentity]) -> None:
    """Two sums of one round over different parties would show their difference; also after the coordinator restarts."""
    table = Table(identities)
    table.unmask(table.share(), [0, 1, 2, 3])
    again = table.share(attempt=1)
    replies = [table.reply(again, index) for index in range(4)]
    assert len(replies) == 4
    for index in range(3):
        with pytest.raises(vf.ProtocolError, match="second sum in round 1"):
            table.ask(again, index, [0, 1, 2])
    table.join()
    restarted = table.share(active=[0, 1, 2])
    assert restarted.committed == {(0, 1, 2, 3)}, "an honest coordinator learns of the commitment"
    for index in range(3):
        table.reply(restarted, index)
        with pytest.raises(vf.ProtocolError, match="second sum in round 1"):
            table.ask(restarted, index, [0, 1, 2])
    same = table.share(attempt=1)
    np.testing.assert_array_equal(table.unmask(same, [0, 1, 2, 3]), table.values.sum(0))
    np.testing.assert_array_equal(table.unmask(table.share(round=2), [0, 1, 2]), table.values[:3].sum(0))


def test_different_lists_to_different_parties_give_no_seed_twice(identities: list[MemberIdentity]) -> None:
    """Party 3 believes that all survived, the others that it was lost: its self-mask stays hidden."""
    table = Table(identities)
    attempt = table.share()
    for index in range(4):
        table.reply(attempt, index)
    everybody = table.ask(attempt, 3, [0, 1, 2, 3])
    assert isinstance(everybody, Unmask)
    survivors = [0, 1, 2]
    signatures = table.sign(attempt, survivors)
    others = [table.ask(attempt, index, survivors, signatures) for index in survivors]
    key = recover_seeds({i + 1: [answer.shares[3].tobytes()] for i, answer in enumerate(others)})
    assert MaskKey(key[0]).public == attempt.shares[3].key, "the pairwise masks of party 3 are known"
    assert share_threshold(4) == 3
    shares = [everybody.shares[3].tobytes()]  # the only share of its self-mask that anybody revealed
    assert len(shares) < share_threshold(4)


def test_lists_that_break_the_rules_are_refused(identities: list[MemberIdentity]) -> None:
    table = Table(identities, count=5, smallest=4)
    attempt = table.share()
    for index in range(5):
        table.reply(attempt, index)
    for survivors, reason in (
        ([0, 1, 2], "fewer than 4"),
        ([0], "fewer than 4"),
        ([1, 2, 3, 4], "not part of"),
        ([0, 1, 2, 7], "did not take part"),
        ([0, 0, 1, 2, 3], "did not take part"),
        ([3, 2, 1, 0], "did not take part"),
    ):
        with pytest.raises(vf.ProtocolError, match=reason):
            table.ask(attempt, 0, survivors)


def test_too_few_or_foreign_signatures_are_refused(identities: list[MemberIdentity]) -> None:
    table = Table(identities)
    attempt = table.share()
    for index in range(4):
        table.reply(attempt, index)
    survivors = [0, 1, 2]
    two = table.sign(attempt, survivors, by=[0, 1])
    for signatures, reason in (
        (two, "shows 2 signatures"),
        ([two[0], two[1], two[1]], "shows 2 signatures"),
        ([two[0]] * 3, "shows 1 signatures"),
        (two[:2], "another number of signatures"),
        ([], "another number of signatures"),
    ):
        with pytest.raises(vf.ProtocolError, match=reason):
            table.ask(attempt, 0, survivors, signatures)
    # Party 2 signs another list with party 3: its signature does not count for this one.
    other = table.ask(attempt, 2, [1, 2, 3])
    with pytest.raises(vf.ProtocolError, match="shows 2 signatures"):
        table.ask(attempt, 0, survivors, [*two[:2], other.signature])
    with pytest.raises(vf.ProtocolError, match="second sum"):
        table.ask(attempt, 1, [1, 2, 3])


def test_a_party_reveals_once(identities: list[MemberIdentity]) -> None:
    """No share of the other seed leaves after the first one, with or without signatures."""
    table = Table(identities)
    attempt = table.share()
    replies = [table.reply(attempt, index) for index in range(4)]
    assert len({reply.tobytes() for reply in replies}) == 4
    table.ask(attempt, 0, [0, 1, 2, 3])
    for survivors in ([0, 1, 2, 3], [0, 1, 2]):
        with pytest.raises(vf.ProtocolError, match="not open here"):
            table.ask(attempt, 0, survivors)
    with pytest.raises(vf.ProtocolError, match="which was answered"):
        table.parties[0].share(table.request(MaskedRound((1, 0), [0, 1, 2, 3])))


def test_replayed_and_exchanged_shares_do_not_open(identities: list[MemberIdentity]) -> None:
    table = Table(identities)
    first = table.share()
    second = MaskedRound((1, 1), [0, 1, 2, 3])
    for index in range(4):
        shares = table.parties[index].share(table.request(second))
        assert isinstance(shares, MaskShares)
        second.take(index, shares)
    fresh = relay(second, 0)
    old = relay(first, 0)
    changes: list[dict[str, Any]] = [
        {"sealed": np.stack([fresh.sealed[0], old.sealed[1], *fresh.sealed[2:]])},  # of the last attempt
        {"sealed": np.stack([fresh.sealed[0], fresh.sealed[2], fresh.sealed[1], fresh.sealed[3]])},
        {"sealed": relay(second, 2).sealed},  # for another party
        {"round_keys": [fresh.round_keys[0], old.round_keys[1], *fresh.round_keys[2:]]},
    ]
    for change in changes:
        with pytest.raises(vf.ProtocolError, match="do not open"):
            table.parties[0].take_shares(fresh.model_copy(update=change))
    for wrong in (old, fresh.model_copy(update={"sealed": fresh.sealed[:2]})):
        with pytest.raises(vf.ProtocolError, match="shares"):
            table.parties[0].take_shares(wrong)
    table.parties[0].take_shares(fresh)
    with pytest.raises(vf.ProtocolError, match="not asked for"):
        table.parties[0].take_shares(fresh)


def test_parties_that_see_other_active_parties_share_nothing(identities: list[MemberIdentity]) -> None:
    """A coordinator that names fewer parties to one of them, to lower the threshold, gets shares that nobody can open."""
    table = Table(identities, count=5)
    wide = MaskedRound((1, 0), [0, 1, 2, 3, 4])
    narrow = MaskedRound((1, 0), [0, 1, 2])
    narrow.request = wide.request
    shares = {index: table.parties[index].share(table.request(wide)) for index in (1, 2, 3, 4)}
    shares[0] = table.parties[0].share(table.request(narrow))
    assert all(isinstance(each, MaskShares) for each in shares.values())
    rows = np.stack([shares[0].sealed[1], *(shares[i].sealed[1] for i in (1, 2, 3, 4))])  # type: ignore[union-attr]
    message = RoundShares(**named(wide.place), round_keys=[shares[i].key for i in range(5)], sealed=rows)  # type: ignore[union-attr]
    with pytest.raises(vf.ProtocolError, match="do not open"):
        table.parties[1].take_shares(message)


def test_a_commitment_survives_a_kill(identities: list[MemberIdentity], tmp_path: Path) -> None:
    """It is on disk before the signature leaves; a line that a kill cut short is no commitment."""
    table = Table(identities)
    path = tmp_path / "survivors.jsonl"
    table.disks[0] = SurvivorLog(path)
    table.join()
    attempt = table.share()
    for index in range(4):
        table.reply(attempt, index)
    table.ask(attempt, 0, [0, 1, 2])  # the signature never arrives
    assert path.read_text() == '["training",1,[0,1,2]]\n'
    with path.open("ab") as file:
        file.write(b'["training",2,0,[0,')
    table.disks[0] = SurvivorLog(path)
    table.join()
    attempt = table.share()
    for index in range(4):
        table.reply(attempt, index)
    with pytest.raises(vf.ProtocolError, match="second sum in round 1"):
        table.ask(attempt, 0, [0, 1, 2, 3])
    table.disks[0].commit("training", 2, [0, 1, 2, 3])
    assert SurvivorLog(path).lists["training", 2] == [0, 1, 2, 3]
    assert SurvivorLog(path).lists["training", 1] == [0, 1, 2]


def test_a_noised_sum_includes_all_whose_noise_it_counts_on(identities: list[MemberIdentity]) -> None:
    table = Table(identities)
    attempt = table.share()
    for index, party in enumerate(table.parties):
        party.config = vf.Config.preset("private")
        party.join("training", index, 4)
    for index in range(4):
        table.reply(attempt, index)
    with pytest.raises(vf.ProtocolError, match="over 3 of 4 parties, fewer than 4"):
        table.ask(attempt, 0, [0, 1, 2])
    assert SEED == 16


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 10**6),
    parties=st.integers(3, 6),
    missing=st.integers(0, 2),
    faults=st.sampled_from([0.03, 0.1, 0.2]),
    exchange=st.sampled_from(["off", 5]),
)
def test_drops_at_any_point_end_in_the_exact_sum_or_in_none(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    parties: int,
    missing: int,
    faults: float,
    exchange: str | int,
) -> None:
    """Kills, delays and restarts at random: every applied sum is exact, and no round has two lists."""
    logging.disable(logging.CRITICAL)
    try:
        simulation = Simulation(
            tmp_path_factory.mktemp("simulated"),
            parties=parties,
            quorum=max(2, parties - missing),
            rounds=4,
            seed=seed,
            faults=faults,
            exchange=exchange,
        )
        simulation.run(20_000)
        simulation.check()
    finally:
        logging.disable(logging.NOTSET)


def test_a_sum_whose_parties_are_all_lost_is_not_closed(small_parties: list[vf.PartyData]) -> None:
    """There is nobody to ask then, which is not the same as having all answers."""
    runtime = federation(small_parties, CONFIG, policy=Policy())
    coordinator = runtime.coordinator
    messages: list[tuple[str, Any]] | None = list(coordinator.open().items())
    while coordinator.state is not CoordinatorState.ROUND or coordinator.due:
        for name, message in messages or []:
            answer = runtime.parties[name].handle(message)
            if answer is not None:
                coordinator.take(name, answer)
        if coordinator.state is CoordinatorState.SHARING:
            messages = coordinator.proceed()
    for name in coordinator.names:
        coordinator.lose(name)
    assert coordinator.proceed() == []
    assert coordinator.state is CoordinatorState.UNMASKING
    assert coordinator.absent == coordinator.names
    assert not coordinator.spares_absent
