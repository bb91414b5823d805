"""The expected time and bytes of a training of a federation, from its own first rounds."""

from __future__ import annotations

import time

from verfedgnn.config import Config
from verfedgnn.federation.event_log import log_event
from verfedgnn.protocol.round.exchange_plan import exchange_cycle


class CostOutlook:
    """Measures the second cycle of the exchange and logs the time and bytes of all rounds, once.

    In the first cycle neighbourhoods are 0, which takes few bytes. A member that starts again within these rounds logs nothing.
    """

    def __init__(self, config: Config, stage: str) -> None:
        self.cycle = exchange_cycle(config)
        self.stage = stage
        self.patience = config.training.patience
        self._mark: tuple[float, int] | None = None

    def note_round(self, round: int, rounds: int, sent: int, now: float | None = None) -> None:
        """Note that a round of `rounds` is over, after `sent` bytes in both directions."""
        moment = time.monotonic() if now is None else now
        if round == self.cycle + 1:
            self._mark = (moment, sent)
        elif round == 2 * self.cycle + 1 and self._mark is not None:
            left = rounds - round
            seconds = left * (moment - self._mark[0]) / self.cycle
            size = sent + left * (sent - self._mark[1]) / self.cycle
            log_event(
                "expected",
                stage=self.stage,
                rounds=rounds,
                minutes_left=seconds / 60,
                megabytes_in_all=size / 1e6,
                stops_early="if the validation error stops falling" if self.patience else None,
            )
