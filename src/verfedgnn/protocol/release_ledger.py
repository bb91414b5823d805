"""A party's own account of what it has released in one training.

In a round a party releases each kind of value once: a repeated round gets the stored release again, even if the coordinator sends
other parameters, and an earlier round is refused. `check_start` refuses rounds that were not agreed on. So the number of releases
never exceeds the agreement, and neither does epsilon. Values that are lost are not made again: the party's Hello names their round
(`lost`), and the coordinator abandons it.

Values of a sum are stored before masks. Noise that is shared out among the active parties has another variance for other active
parties. Such values are then made anew, which tells nothing more: a party helps to unmask one list of parties a round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from verfedgnn.config import Config
from verfedgnn.core.errors import ProtocolError, RunError
from verfedgnn.privacy.rating_dp import rating_epsilon

GRADIENT = "gradient"
NEIGHBOURHOODS = "neighbourhoods"
VALIDATION = "validation"

Values = Mapping[str, NDArray[Any]]
"""Values of a release by kind."""


@dataclass(frozen=True)
class ReleaseEntry:
    """One release, or one more kind of value in the same round."""

    training: str
    rounds: int
    """Number of rounds of the whole training."""
    round: int
    active: list[int]
    """Parties of the sums that the release enters."""
    kinds: dict[str, str]
    """Mechanism of each kind of value."""
    epsilon: float | None = None
    """Epsilon of single ratings, spent so far; None where the configuration does not protect them."""


@dataclass
class ReleaseLedger:
    """The releases of one training, in memory. `store` makes each durable before it leaves the party."""

    config: Config
    entries: list[ReleaseEntry] = field(default_factory=list)
    last: dict[str, NDArray[Any]] = field(default_factory=dict)
    """Values of `last_round`, before masks, by `_name`."""
    last_round: int = 0
    """The last round that was released, or whose release was about to be entered."""
    store: Callable[[ReleaseEntry, Values, int], None] = lambda entry, values, before: None
    """Callback that writes an entry and the values of the round, after the number of entries `before`."""
    training: str = ""
    rounds: int = 0

    def check_training(self, training: str, rounds: int) -> None:
        """Raise `ProtocolError` if this ledger belongs to another training, or to one with another number of rounds."""
        self.training, self.rounds = training, rounds
        if not self.entries:
            return
        first = self.entries[0]
        if first.rounds != rounds:
            raise ProtocolError(
                f"the coordinator changes the number of rounds from {first.rounds} to {rounds}; start a new training"
            )
        if first.training != training:
            raise ProtocolError(
                f"this run has released values in training {first.training}, and the coordinator runs {training}; "
                "choose another --out to agree to one more training"
            )

    def check_round(self, round: int) -> None:
        """Raise `ProtocolError` if a round is before the last release."""
        if self.entries and round < self.entries[-1].round:
            raise ProtocolError(
                f"the coordinator asks again for round {round}, but this party has released round {self.entries[-1].round}; "
                "restore the coordinator's newest checkpoint, or start a new training"
            )

    def release(self, round: int, active: Sequence[int], made: Values) -> dict[str, NDArray[Any]]:
        """Return the values that leave the party in a round: those that left it before, else those `made` now."""
        self.check_round(round)
        if self.last_round != round:
            self.last, self.last_round = {}, round
        names = {kind: self._name(kind, active) for kind in made}
        before = self._released(round)
        if not before & set(names.values()) <= set(self.last):
            raise ProtocolError(
                f"this party has released round {round} and no longer has the values; the coordinator must abandon that round"
            )
        new = [kind for kind, name in names.items() if name not in before]
        if new:
            self.last = {names[kind]: made[kind] for kind in new} | self.last  # stored values may have left
            gradients = self.config.gradients
            noised = gradients.mechanism if gradients.protects_ratings else "none"
            mechanisms = {NEIGHBOURHOODS: "projected", GRADIENT: gradients.mechanism, VALIDATION: noised}
            kinds = {kind: mechanisms[kind] for kind in new}
            entry = ReleaseEntry(self.training, self.rounds, round, list(active), kinds)
            entry = replace(entry, epsilon=self._spent(entry))
            self.store(entry, self.last, len(self.entries))
            self.entries.append(entry)
        return {kind: self.last[name] for kind, name in names.items()}

    @property
    def last_released(self) -> int | None:
        """The last round of which something was released; 0 before the first."""
        return self.entries[-1].round if self.entries else 0

    @property
    def lost(self) -> int:
        """The last round, if it was released and cannot be repeated because its values are lost; else 0."""
        newest = self.last_released or 0
        kept = set(self.last) if self.last_round == newest else set()
        return 0 if self._released(newest) <= kept else newest

    def check_age(self, known: int, where: str) -> None:
        """Raise `RunError` if there are fewer releases than the `known` ones that another file tells of."""
        if len(self.entries) < known:
            raise RunError(
                f"{where} tells of {known:,} releases, and the ledger releases.jsonl beside it has {len(self.entries):,}: it is an "
                "older copy, and this party would release rounds again with other noise; put the newest ledger back, or start a "
                "new training with another --out"
            )

    def _released(self, round: int) -> set[str]:
        """Return the names of all values that were released in a round."""
        here = [entry for entry in self.entries if entry.round == round]
        return {self._name(kind, entry.active) for entry in here for kind in entry.kinds}

    def _name(self, kind: str, active: Sequence[int]) -> str:
        """Return the name of stored values; noise that is shared out belongs to its active parties."""
        shared = kind == GRADIENT and self.config.gradients.protects_ratings
        return f"{kind} {list(active)}" if shared else kind

    def count(self, kind: str, *more: ReleaseEntry) -> int:
        """Return in how many rounds a kind of value was released, with `more` entries."""
        return len({entry.round for entry in (*self.entries, *more) if kind in entry.kinds})

    @property
    def epsilon(self) -> float | None:
        """Epsilon of single ratings, spent so far; None where the configuration does not protect them."""
        return self.entries[-1].epsilon if self.entries else self._spent()

    def _spent(self, *more: ReleaseEntry) -> float | None:
        if not self.config.gradients.protects_ratings or "noise" in self.config.unprotected:
            return None
        rounds, validations = (self.count(kind, *more) for kind in (GRADIENT, VALIDATION))
        return (
            rating_epsilon(self.config, rounds=rounds, validations=validations)
            if rounds + validations
            else 0.0
        )

    def summary(self) -> dict[str, Any]:
        """Return what is spent, for a status page and metrics.json."""
        counts = {kind: self.count(kind) for kind in (GRADIENT, NEIGHBOURHOODS, VALIDATION)}
        return {**counts, "epsilon": self.epsilon}


class NoLedger(ReleaseLedger):
    """The account on one machine, where there is nobody to distrust: it records nothing."""

    @property
    def last_released(self) -> int | None:
        """None: nobody knows."""
        return None

    def release(self, round: int, active: Sequence[int], made: Values) -> dict[str, NDArray[Any]]:
        """Return the values that were made."""
        return dict(made)
