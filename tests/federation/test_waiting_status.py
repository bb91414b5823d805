"""Who waits for whom: on the coordinator's page, on a party's, in `status` and in Prometheus; and the examples that use it."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from test_absence import wait_until
from test_federation import assert_same, in_round, local, trial

import verfedgnn as vf
from hub import SERVER
from verfedgnn.federation import coordinator_stage, party_session
from verfedgnn.federation.party_store import PartyStore
from verfedgnn.federation.status_server import exposition, page
from verfedgnn.federation.status_text import presence
from verfedgnn.protocol.wire.messages import RoundReply, encode

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "monitoring"


def test_a_finished_party_has_left_before_it_chooses_its_gate(
    tmp_path: Path, small_parties: list[vf.PartyData], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator may be gone by then, and a party that looked for it would log failures."""
    connected: list[bool] = []
    choose = party_session.complete_run

    def watch(store: PartyStore, device: str) -> vf.Run:
        connected.append(store.identity.name in federated.hub.wires)
        return choose(store, device)

    monkeypatch.setattr(party_session, "complete_run", watch)
    federated = trial(tmp_path, small_parties)
    federated.run()
    assert connected == [False] * 3


def test_a_stopped_party_is_stalled_on_every_side(
    tmp_path: Path, small_parties: list[vf.PartyData], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_stage, "STALL_SECONDS", 0.3)
    seen = {}

    def stop(reply: RoundReply) -> bytes:
        """Answer only when all sides have noticed."""
        deadline = time.monotonic() + 180
        while len(seen) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        return encode(reply)

    late, other, _ = (party.name for party in small_parties)
    federated = trial(tmp_path, small_parties)
    for name in (SERVER, *federated.parties):
        federated.start(name, in_round(5, stop) if name == late else None)

    def notice() -> bool:
        for name, state in ((SERVER, "stalled"), (other, "waiting")):
            service = federated.services.get(name)
            status = {} if service is None else service.publisher.status
            if status.get("state") == state and status.get("waits_for") == [late]:
                seen[name] = status
        return len(seen) == 2

    wait_until(notice)
    federated.join()
    assert_same(federated, local(small_parties))
    about = seen[SERVER]
    assert (about["parties"][late]["here"], presence(about["parties"][late])) == (False, "stalled")
    assert presence(about["parties"][other]) == "here"
    assert about["updated"] - about["waits_since"] >= 0.3
    assert about["seconds_left"] is None
    assert "stalled" in page(about)
    text = exposition(about)[1].decode()
    assert f'verfedgnn_party_stalled{{party="{late}"}} 1.0' in text
    assert f'verfedgnn_waits_for{{party="{late}"}} 1.0' in text
    check_examples(text)


def check_examples(text: str) -> None:
    """Alert rules and the dashboard can be read and use metrics that there are."""
    (group,) = yaml.safe_load((EXAMPLES / "alerts.yaml").read_text())["groups"]
    assert all(rule["annotations"]["summary"] for rule in group["rules"])
    expressions = [rule["expr"] for rule in group["rules"]]
    board = json.loads((EXAMPLES / "grafana.json").read_text())
    expressions += [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    known = set(re.findall(r"^# TYPE (\w+) ", text, re.M)) | {"verfedgnn_seconds_left"}
    used = {name for expression in expressions for name in re.findall(r"\bverfedgnn_\w+", expression)}
    assert used <= known
