"""How large messages may be, how much memory they take, and what a member does with larger ones."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from test_federation import settings, trial

import verfedgnn as vf
from hub import SERVER, wait_until
from verfedgnn.federation.coordinator_service import MOST_OFFENCES
from verfedgnn.federation.transport import TransportEvent, size_of
from verfedgnn.gnn.model import Model
from verfedgnn.protocol.messages import RoundReply, Welcome, decode, encode, encode_parts
from verfedgnn.protocol.replica import largest_message


def test_a_full_copy_is_held_once_for_all_parties() -> None:
    """Ten Welcomes that wait for slow parties take the memory of one full copy, and keep the values of their round."""
    import torch

    from verfedgnn.protocol.replica import Replica

    config = vf.Config.preset("best").for_data(2000, 80_000, 3)
    model = Model(config.model, 2000)
    replica = Replica(config, model, [3, 4], 100, 3.0, torch.device("cpu"))
    fields = {
        "items": [3, 4],
        "stay": "s",
        "training": "t",
        "config": "c",
        "ratings": 100,
        "typical": 3.0,
        "round": 0,
        "digest": "d",
    }
    tracemalloc.start()
    waiting = [encode_parts(Welcome(index=index, **fields, **replica.full_copy())) for index in range(10)]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.5 * size_of(waiting[0])
    expected = replica.parameters.clone()
    replica.parameters += 1
    message = decode(b"".join(waiting[9]))
    assert isinstance(message, Welcome)
    np.testing.assert_array_equal(message.parameters, expected.numpy())
    del waiting, message
    assert not replica._copies


@pytest.mark.parametrize("preset", ["paper", "best", "private"])
@pytest.mark.parametrize("parties", [3, 300])
def test_every_message_of_a_training_is_within_its_announced_size(preset: str, parties: int) -> None:
    """The largest arrays that the configuration allows, unpackable: the bounds hold, and are not loose by more than a few times."""
    from verfedgnn.privacy.protections import protection_of
    from verfedgnn.protocol.forward_backward import neighbourhood_shape, neighbourhood_type

    config = vf.Config.preset(preset, masking=True)
    model = Model(config.model, 20_000)
    rng = np.random.default_rng(0)
    kind = protection_of(config, parties).sent_type
    gradient = rng.integers(0, 2 ** (8 * kind.itemsize), model.size, kind, endpoint=False)
    shared = None
    if config.exchange != "off":
        shape = neighbourhood_shape(config, model)
        width = neighbourhood_type(config)
        shared = rng.integers(0, 2 ** (8 * width.itemsize), shape, width, endpoint=False)
    reply = size_of(encode_parts(RoundReply(round=1, gradient=gradient, neighbourhoods=shared)))
    assert reply <= largest_message(config, model, kind.itemsize) < 1.1 * reply + (2 << 20)
    assert largest_message(config, model, 16) >= 4 * 3 * model.size


def test_a_party_that_sends_too_much_is_barred_and_nobody_else(
    tmp_path: Path, small_parties: list[vf.PartyData]
) -> None:
    federated = trial(tmp_path, small_parties, settings(epochs=1))
    bad, *_ = federated.parties
    federated.start(SERVER, restart=False)
    wait_until(lambda: SERVER in federated.services)
    wire = federated.hub.wires[SERVER]
    for _ in range(MOST_OFFENCES + 5):
        wire.events.put(TransportEvent("message", bad, bytes(wire.largest + 1)))
    service = federated.services[SERVER]
    wait_until(wire.events.empty)
    federated.stopping = True
    federated.join()
    assert dict(service.offences) == {bad: MOST_OFFENCES}


def test_a_party_refuses_more_than_the_agreement_announces(
    tmp_path: Path, small_parties: list[vf.PartyData]
) -> None:
    """The attack: a hostile coordinator sends a Welcome of thousands of times the agreed size, to fill a party's memory."""
    federated = trial(tmp_path, small_parties, settings(epochs=1), min_parties=2)
    victim = small_parties[0].name

    def grow(data: bytes) -> bytes:
        message = decode(data)
        if isinstance(message, Welcome) and not message.index:
            return encode(message.model_copy(update={"parameters": np.zeros(1 << 20, np.float32)}))
        return data

    federated.start(SERVER, grow)
    for name in federated.parties:
        federated.start(name)
    wait_until(lambda: victim in federated.errors)
    federated.stopping = True
    federated.join()
    assert "where at most" in str(federated.errors[victim][0])
