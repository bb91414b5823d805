"""One small message of every kind."""

from __future__ import annotations

import numpy as np

from verfedgnn.protocol import messages as align
from verfedgnn.protocol.messages import (
    About,
    Finish,
    Finished,
    Hello,
    ListSignature,
    MaskShares,
    MembersPage,
    Refused,
    RoundReply,
    RoundShares,
    RoundStart,
    ShareRequest,
    Survivors,
    Unmask,
    Waiting,
    Welcome,
)

HELLO = Hello(party="film", users=4, items=3, ratings=9, scale=(1.0, 5.0), config="ab")
WELCOME = Welcome(
    index=0, items=[3, 4], stay="s", training="t", config="ab", ratings=2, typical=3.0, round=0,
    parameters=np.ones(5, np.float32), accumulator=np.zeros(5, np.float32), digest="cd",
)  # fmt: skip
START = RoundStart(
    round=2, active=[0, 1], evaluate=False, best_round=1, updates_from=1,
    update_parties=[[0, 1]], updates=np.ones((1, 3), np.uint8),
    neighbourhood_parties=[0, 1], neighbourhoods=np.ones((2, 3, 1), np.int32),
)  # fmt: skip
REPLY = RoundReply(round=2, gradient=np.ones(3, np.uint8), neighbourhoods=np.ones((2, 3, 1), np.int32))
_PLACE = {"round": 2, "attempt": 1}
MASKS = [
    ShareRequest(
        **_PLACE, request="ab", active=[0, 1], mask_keys=["0" * 64, "1" * 64], mask_signatures=["00", "01"]
    ),
    MaskShares(**_PLACE, request="ab", key="0" * 64, sealed=np.ones((2, 60), np.uint8), committed=[0, 1]),
    RoundShares(**_PLACE, round_keys=["0" * 64, "1" * 64], sealed=np.ones((2, 60), np.uint8)),
    Survivors(**_PLACE, survivors=[0, 1], signatures=["00", ""]),
    ListSignature(**_PLACE, signature="00"),
    Unmask(**_PLACE, shares=np.ones((2, 16), np.uint8)),
]
"""The messages about masks."""
ABOUT = About(version="0.1", run="2026-11-14", word="yes", gain="+3 of 100 customers")
FINISH = Finish(round=3, best_round=2, parameters=np.ones(5, np.float32), digest="ef")
ALL = [
    HELLO, WELCOME, START, REPLY, *MASKS, FINISH, Finished(digest="ab"), Refused(reason="no"), Waiting(missing=["film"]),
    ABOUT, MembersPage(members={"film": ABOUT}, nights=[("2026-11-14", "failed")], offer="ab"),
    align.AlignHello(party="film", agreement="ab", users=2, seal_key="0" * 64, seal_signature="00"),
    align.AlignStart(session="ab" * 16, index=0, seal_keys=["0" * 64], seal_signatures=["00"]),
    align.Sealed(session="ab" * 16, peer=1, data=np.ones(4, np.uint8)),
    align.Pseudonyms(session="ab" * 16, values=np.ones((2, 16), np.uint8)),
    align.UserRows(session="ab" * 16, users=2, rows=np.array([1, -1], np.int32)),
    align.Aligned(session="ab" * 16, users=2),
]  # fmt: skip
