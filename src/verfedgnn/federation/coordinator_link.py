"""A party's connection to the coordinator: messages both ways, byte counts, and joining again after interruptions."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from verfedgnn.core.array_files import hash_arrays
from verfedgnn.core.errors import DataError, Interrupted, ProtocolError
from verfedgnn.core.installed import installed_version
from verfedgnn.federation.certificates import COORDINATOR
from verfedgnn.federation.event_log import log_event, log_warning
from verfedgnn.federation.roster import MemberIdentity
from verfedgnn.federation.status import StatusPublisher
from verfedgnn.federation.transcript import ALIGNMENT, CONTRIBUTORS, Statements, Transcript, mark_message
from verfedgnn.federation.transport import Transport
from verfedgnn.gnn.model import Model
from verfedgnn.protocol import messages as msg
from verfedgnn.protocol.party import Candidate
from verfedgnn.protocol.replica import largest_alignment, split_updates

SILENT_SECONDS = 8.0
"""Number of seconds without a message from a coordinator that otherwise sends signs of life every few seconds."""
_TICK = 0.25


class CoordinatorLink:
    """A party's end of the connection. It counts bytes and says hello again after every interruption."""

    def __init__(
        self,
        identity: MemberIdentity,
        transport: Transport,
        stop: Callable[[], bool],
        publisher: StatusPublisher,
        *,
        verdict: Mapping[str, str] | None = None,
    ) -> None:
        """`verdict` holds the fields of a verdict that the party shares with all members."""
        self.timeouts = identity.agreement.timeouts
        self.name = identity.name
        self.transport = transport
        self.transcript = Transcript(publisher.folder, identity)
        self.publisher = publisher
        self.stop = stop
        self.connected = False
        self.stage = ALIGNMENT
        """Name of the present training, or "alignment"."""
        self.heard: float | None = None
        """Unix time of the last message from the coordinator; None before the first."""
        self.waits_for = [COORDINATOR]
        """Members for whom the training waits; the coordinator if it is away or silent."""
        self.waits_since: float | None = time.time()
        self.page: msg.MembersPage | None = None
        """What the coordinator has told all members."""
        self._about = msg.About(version=installed_version(), **(verdict or {}))
        self._agreement = identity.agreement.digest()
        self._candidate: Candidate | None = None
        """What takes part in the present training; None before it."""
        self._hello: Callable[[], msg.Message]
        self._last_heard = 0.0
        self._last_hello = 0.0
        aligns = identity.agreement.alignment != "none"
        transport.largest = largest_alignment(identity.agreement.max_users if aligns else 0)
        self._largest_alignment = transport.largest
        publisher.update(self.status, now=True)

    def begin(self, stage: str, hello: Callable[[], msg.Message], candidate: Candidate | None = None) -> None:
        """Send `hello()`, now and on every new connection, to align users or to let `candidate` take part in a training."""
        self.stage = stage
        self._hello = hello
        self._candidate = candidate
        if candidate is not None:
            self.transport.largest = max(candidate.largest_message, self._largest_alignment)
        if self.connected:
            self._say_hello()

    def send(self, *messages: msg.Message) -> None:
        """Send messages to the coordinator."""
        encoded = [msg.encode_parts(message) for message in messages]
        for message, data in zip(messages, encoded, strict=True):
            mark = mark_message(data)
            self.transcript.record("out", COORDINATOR, message, mark, self.stage)
        self.transport.send(COORDINATOR, *encoded)

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Tell the coordinator why this party leaves, if what it sent cannot be acted on."""
        try:
            yield
        except (DataError, ProtocolError) as error:
            self.send(msg.Refused(reason=str(error)[:500]))
            raise

    def _say_hello(self) -> None:
        self._last_hello = time.monotonic()
        self.send(self._hello())

    def _take_page(self, page: msg.MembersPage) -> None:
        """Keep what all members may see; tell of other versions and of a changed agreement."""
        if page.members.get(self.name, self._about) != self._about:
            if time.monotonic() - self._last_hello < self.timeouts.hello:
                return  # sent before the coordinator heard what this party is now
            raise ProtocolError("the coordinator tells the members what this party did not say of itself")
        before, self.page = self.page, page
        versions = {name: about.version for name, about in page.members.items()}
        if before is None or versions != {name: about.version for name, about in before.members.items()}:
            log = log_event if len(set(versions.values())) == 1 else log_warning
            log("versions of the members", versions=[f"{name} {one}" for name, one in versions.items()])
        if page.offer != self._agreement and (before is None or before.offer != page.offer):
            remedy = "look at it with `verfedgnn federation accept FOLDER`"
            log_warning("the agreement was changed", next=remedy)

    def receive(
        self, status: Callable[[], dict[str, Any]] | None = None, joining: Callable[[], bool] = lambda: False
    ) -> msg.Message:
        """Return the next message; raise `Interrupted` when a stop was requested.

        Until one arrives, say hello on every new connection, repeatedly while `joining()`, and after long silence, and publish
        `status()`.
        """
        self._last_heard = time.monotonic()  # only silence while listening counts
        while True:
            if self.stop():
                raise Interrupted("stopped")
            if self.connected:
                self._act_on_silence(joining)
            event = self.transport.next(_TICK)
            if event is None:
                self.publisher.update(status or self.status)
                continue
            self._last_heard = time.monotonic()
            if event.kind == "joined":
                log_event("connected to the coordinator")
                self.connected = True
                self._wait_for([])
                self.send(self._about)
                self._say_hello()
            elif event.kind == "left":
                log_warning("lost the coordinator, reconnecting")
                self.connected = False
                self._wait_for([COORDINATOR])
            elif event.kind == "broken":
                raise ProtocolError(f"the coordinator sent {event.reason}")
            elif event.kind != "part":
                self.heard = time.time()
                message = self._read(event.data)
                if not isinstance(message, msg.MembersPage):
                    return message
                self._take_page(message)

    def _act_on_silence(self, joining: Callable[[], bool]) -> None:
        """Log once that the coordinator, which is connected, has sent nothing for long, and say hello again if it is time."""
        now = time.monotonic()
        silence = now - self._last_heard
        idle = self.timeouts.idle
        if silence > SILENT_SECONDS and self.waits_for != [COORDINATOR]:
            start = time.strftime("%H:%M:%S", time.localtime(time.time() - silence))
            then = f"this party joins again after {idle:g} s of silence"
            log_warning("no message from the coordinator", since=start, next=then)
            self._wait_for([COORDINATOR])
        if now - self._last_hello > self.timeouts.hello and (silence > idle or joining()):
            if silence > idle:
                log_warning("no message from the coordinator, joining again", seconds=idle)
                self._last_heard = now
            self._say_hello()

    def _wait_for(self, names: list[str]) -> None:
        if names != self.waits_for:
            self.waits_for = names
            self.waits_since = time.time() if names else None
            if names and names != [COORDINATOR]:
                log_event("waiting for others", missing=names)

    def _read(self, data: msg.Buffer) -> msg.Message:
        candidate = self._candidate
        # Outside of rounds, arrays are packed with at least one bit per value, which bounds their size.
        most = min(64 * len(data), self.transport.largest)
        if candidate is not None and msg.kind_of(data) is msg.RoundStart:
            most = candidate.largest_array
        mark = mark_message((data,))
        try:
            message = msg.decode(data, most)
        except ProtocolError:
            self.transcript.record("in", COORDINATOR, None, mark, self.stage)
            raise
        common = common_statements(message, None if candidate is None else candidate.setup.model)
        self.transcript.record("in", COORDINATOR, message, mark, self.stage, common)
        self._wait_for(message.missing if isinstance(message, msg.Waiting) else [])
        if isinstance(message, msg.Refused):
            self.publisher.status |= {"waits_for": [], "waits_since": None}  # the coordinator is here
            raise ProtocolError(f"the coordinator refused: {message.reason}")
        if isinstance(message, msg.Waiting) and message.second:
            log_warning("another process wanted to join under this party's name and was refused: stop it")
        return message

    def status(self) -> dict[str, Any]:
        """Return the status of the connection, which is all there is to say before a training."""
        here = self.connected
        sizes = {"up": self.transcript.total("up"), "down": self.transcript.total("down")}
        return {
            "ready": self.waits_for != [COORDINATOR],
            "stage": self.stage,
            "state": "gathering" if self.waits_for else "aligning",
            "waits_for": self.waits_for,
            "waits_since": self.waits_since,
            "members": None if self.page is None else self.page.model_dump(),
            "parties": {
                self.name: {"here": False, "joined": here, **sizes},
                COORDINATOR: {"here": here, "connected": here, "heard": self.heard, "up": 0, "down": 0},
            },
        }


# -- what every party must receive alike, as short statements that parties can compare --------------------------------------
#
# A statement has a subject, such as `update 4`, and values by field. Arrays and keys are replaced by their SHA-256. Parties that
# write down what they received can find out later whether a coordinator said different things to different parties.

_STATED: dict[type[msg.Message], dict[str, tuple[str, ...]]] = {
    msg.AlignStart: {"alignment {session}": ("seal_keys", "seal_signatures")},
    msg.UserRows: {"rows {session}": ("users",)},
    msg.Welcome: {
        "training": ("training", "config", "items", "ratings", "typical"),
        "digest {round}": ("digest",),
        "parameters {round}": ("accumulator", "parameters"),
    },
    msg.RoundStart: {
        "instruction {round}.{attempt}": ("active", "evaluate", "best_round"),
        "neighbourhoods {neighbourhood_round}": ("neighbourhood_parties", "neighbourhoods"),
        "parameters {before}": ("accumulator", "parameters"),
    },
    msg.Survivors: {"survivors {round}.{attempt}": ("survivors",)},
    msg.Finish: {"result": ("round", "best_round", "digest")},
}
"""The fields that are alike for all parties, by subject. A subject whose last field is empty is left out."""


def common_statements(message: msg.Message, model: Model | None) -> Statements:
    """Return what `message` says to all parties alike; `model` is that of the training, None before it."""
    fields = dict(message)
    about = fields | {"before": fields.get("round", 0) - 1}
    said: Statements = {
        subject.format_map(about): {name: _state(fields[name]) for name in names if fields[name] is not None}
        for subject, names in _STATED.get(type(message), {}).items()
        if fields[names[-1]] is not None
    }
    if isinstance(message, msg.RoundStart) and model is not None:
        for update in split_updates(message, model.size):
            said[f"update {update.round}"] = {CONTRIBUTORS: update.parties, "updates": _state(update.total)}
    if isinstance(message, msg.MembersPage):
        for name, shared in message.members.items():
            if shared.word:
                said[f"verdict {name}"] = {"verdict": f"{shared.word} {shared.gain} {shared.run}"}
    return said


def _state(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return f"{hash_arrays([value]).hex()} {value.dtype.str} {value.shape}"
    if isinstance(value, list) and value and isinstance(value[0], str):
        return hashlib.sha256(repr(value).encode()).hexdigest()
    return value
