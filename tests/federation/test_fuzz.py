"""Hostile input against the two services: it is handled or refused, and no other member is affected.

The coordinator and a party each get 500 protocol messages with changed bytes or fields.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_federation import trial

import verfedgnn as vf
from helpers import config
from hub import SERVER, Wire
from message_samples import ALL
from verfedgnn.core.random_streams import simulated_secret
from verfedgnn.federation.coordinator_service import CoordinatorService
from verfedgnn.federation.status import StatusPublisher
from verfedgnn.federation.transport import TransportEvent
from verfedgnn.protocol.aggregation import neighbourhood_shape, neighbourhood_type
from verfedgnn.protocol.coordinator import Coordinator
from verfedgnn.protocol.messages import (
    Finish,
    Hello,
    Message,
    RoundReply,
    RoundStart,
    Welcome,
    decode,
    encode,
)
from verfedgnn.protocol.party import Candidate
from verfedgnn.runs.prepared_data import prepare

EXAMPLES = 500

odd_numbers = st.sampled_from([-1, 0, 1, 2, 3, 255, 65535, 2**31, 2**63, 10**30])
odd_lists = st.one_of(
    st.just([]),
    st.lists(odd_numbers, max_size=4),
    st.lists(st.lists(odd_numbers, max_size=3), max_size=3),
    st.just([0] * 5000),
)
odd_values = st.one_of(
    odd_numbers,
    odd_lists,
    st.floats(),
    st.text(max_size=30),
    st.none(),
    st.booleans(),
    st.just("ab" * 32),
    st.just(["ab" * 32] * 3),
)
odd_arrays = st.builds(
    lambda shape, kind, fill: np.full(shape, fill).astype(kind),
    st.sampled_from([(0,), (1,), (7,), (726,), (2, 3), (1, 243), (2, 24, 6), (2, 0, 6)]),
    st.sampled_from([np.uint8, np.int8, np.int16, np.int32, np.float32]),
    st.sampled_from([0, 1, 100, -1]),
)


@st.composite
def changed(draw: st.DrawFn, messages: list[Message]) -> bytes:
    """Return one of `messages` with a few bytes or fields changed."""
    message = draw(st.sampled_from(messages))
    if draw(st.booleans()):
        raw = bytearray(encode(message))
        for _ in range(draw(st.integers(1, 4))):
            raw[draw(st.integers(0, len(raw) - 1))] = draw(st.integers(0, 255))
        return bytes(raw[: draw(st.integers(len(raw) - 3, len(raw)))])
    update: dict[str, Any] = {}
    for name in draw(st.lists(st.sampled_from(sorted(type(message).model_fields)), min_size=1, max_size=2)):
        update[name] = draw(st.one_of(odd_arrays, st.none()) if name in message.arrays else odd_values)
    with np.errstate(all="ignore"):
        try:
            return encode(message.model_copy(update=update))
        except Exception:  # a message that cannot be encoded cannot arrive
            return encode(message)


def federation_at_work(
    parties: list[vf.PartyData], folder: Path
) -> tuple[CoordinatorService, list[Candidate]]:
    """Return a coordinator service before its first round, and its parties."""
    setting = trial(folder, parties, config(masking=False, epochs=400), min_parties=2)
    service = CoordinatorService(
        setting.identities[SERVER], Wire(setting.hub, SERVER), StatusPublisher(folder / "run")
    )
    prepared = prepare(parties, setting.agreement.config, parties_device())
    members = [
        Candidate(p.input, setting.agreement.config, simulated_secret(0, i)) for i, p in enumerate(prepared)
    ]
    return service, members


def parties_device() -> Any:
    import torch

    return torch.device("cpu")


def join(service: CoordinatorService, party: Candidate) -> None:
    hello = party.hello().model_copy(update={"agreement": service.coordinator.agreement, "alignment": "a"})
    service._handle(TransportEvent("message", party.name, encode(hello)))


def test_the_coordinator_survives_anything(
    tmp_path_factory: pytest.TempPathFactory, small_parties: list[vf.PartyData]
) -> None:
    logging.getLogger("verfedgnn.federation").setLevel(logging.CRITICAL)
    service, members = federation_at_work(small_parties, tmp_path_factory.mktemp("fuzz"))
    for party in members:
        join(service, party)
    service.stage.step()
    coordinator, bad = service.coordinator, members[0].name
    others = {party.name for party in members[1:]}
    reply = RoundReply(
        round=1,
        gradient=np.zeros(coordinator.model.size, coordinator.replica.protection.sent_type),
        neighbourhoods=np.zeros(
            neighbourhood_shape(coordinator.config, coordinator.model), neighbourhood_type(coordinator.config)
        ),
    )
    refused = 0

    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
    @given(data=changed([*ALL, reply]), again=st.booleans())
    def attack(data: bytes, again: bool) -> None:
        nonlocal refused
        service.offences.clear()
        if bad not in coordinator.members.present:
            join(service, members[0])
            while coordinator.absent and service.stage.step():
                pass
        service._handle(TransportEvent("message", bad, data))
        if again:
            service._handle(TransportEvent("message", bad, data))
        refused += service.offences[bad]
        assert set(service.offences) <= {bad}, "nobody else is blamed"
        assert others <= coordinator.members.present, "nobody else is lost"
        assert set(coordinator.replies) <= {bad}
        assert coordinator.round == 1

    attack()
    assert refused > EXAMPLES / 4, "most of it was refused"
    logging.getLogger("verfedgnn.federation").setLevel(logging.INFO)


def test_a_party_survives_anything(small_parties: list[vf.PartyData]) -> None:
    """Every message is handled or raises an error; the private parameters stay finite."""
    chosen = config(masking=True, epochs=400)
    prepared = prepare(small_parties, chosen, parties_device())
    members = [Candidate(p.input, chosen, simulated_secret(0, i)) for i, p in enumerate(prepared)]
    coordinator = Coordinator(chosen, [p.name for p in members])
    for party in members:
        coordinator.hello(party.hello())
    welcomes = [coordinator.welcome(party.name) for party in members]
    parties = {party.name: party.welcome(welcome) for party, welcome in zip(members, welcomes, strict=True)}
    for _ in range(2):
        for name, start in coordinator.open().items():
            answer = parties[name].handle(decode(encode(start)))
            assert isinstance(answer, RoundReply)
            coordinator.receive(name, answer)
        coordinator.close()
    start = decode(encode(coordinator.open()[members[0].name]))
    finish = Finish(
        round=2,
        best_round=coordinator.best.round,
        parameters=coordinator.public.numpy(),
        digest=coordinator.public_digest,
    )
    victim, good = parties[members[0].name], 0
    before = victim.progress.checkpoint(), victim.progress.models()

    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
    @given(data=changed([start, start, start, welcomes[0], finish]))
    def attack(data: bytes) -> None:
        nonlocal good
        victim.progress.restore(*before)
        victim._last = (0, 0)
        victim.progress.snapshot = None
        members[0].stay = welcomes[0].stay
        victim.replica.load({name: values.copy() for name, values in public.items()}, 2)
        try:
            message = decode(data)
            if isinstance(message, Welcome):
                members[0].welcome(message)
            elif isinstance(message, Hello):
                return
            else:
                victim.handle(message)
            good += 1
        except vf.VerFedGNNError:
            pass
        assert bool(victim.progress.private.parameters["items"].isfinite().all())

    public = {name: values.copy() for name, values in coordinator.replica.arrays().items()}
    attack()
    assert 0 < good < EXAMPLES
    assert isinstance(start, RoundStart)
