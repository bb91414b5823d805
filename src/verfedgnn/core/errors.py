"""The package's errors. Each message is one line that says what is wrong and how to fix it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from verfedgnn.core.option_names import option

UNKNOWN_COLUMN = "..."
"""Stands for the name of a column in a message."""


class VerFedGNNError(Exception):
    """Base class of errors that a user can fix.

    The command line prints the message and exits with `exit_code`.
    """

    exit_code = 2


class DataError(VerFedGNNError, ValueError):
    """A file or table of ratings that cannot be used."""


class MissingColumns(DataError):
    """A table without the columns that are needed, or without those that were named."""

    def __init__(
        self, what: str, columns: Mapping[str, str], advice: str = "", *, likes: str | None = None
    ) -> None:
        self.likes = likes
        """What to note where every row counts as a like; None if something else lacks, or a column could hold ratings."""
        naming = option("columns", columns)
        guessed = UNKNOWN_COLUMN not in columns.values()
        many = list(columns.values()).count(UNKNOWN_COLUMN) > 1
        ask = f"did you mean {naming}?" if guessed else f"name {'them' if many else 'it'} with {naming}"
        super().__init__(f"{what}; {ask}{advice}")
        self.flags: tuple[str, ...] = (naming.removeprefix("--columns "),) if guessed else ()
        """Values of `--columns` that mend the error; none if a column could not be guessed."""

    @classmethod
    def join(cls, errors: Sequence[MissingColumns]) -> MissingColumns:
        """Return one error about several tables."""
        joined = errors[0]
        if len(errors) > 1:
            joined.args = (" Also ".join(str(e) if str(e)[-1] in ".?" else f"{e}." for e in errors),)
            flags = [error.flags for error in errors]
            joined.flags = tuple(flag for some in flags for flag in some) if all(flags) else ()
        return joined


class ConfigError(VerFedGNNError, ValueError):
    """A configuration that is contradictory or unknown, or that is unprotected without acknowledging it."""


class DivergedError(VerFedGNNError):
    """A training whose gradients are no longer finite."""


class RunError(VerFedGNNError):
    """A run folder that cannot be written, read or resumed."""


class RunWarning(UserWarning):
    """Warning about a part of a run folder that was left out."""


class PluginWarning(UserWarning):
    """Warning that the code of a run's plug-in has changed since training."""


class ProtocolError(VerFedGNNError):
    """A message that is malformed, out of order or out of bounds. The error never quotes its content."""

    exit_code = 3


class NotPromoted(VerFedGNNError):
    """A challenger that does not replace the champion; the champion stays."""

    exit_code = 5


class Interrupted(VerFedGNNError):
    """A requested stop.

    Finished work is kept, and `remedy` says how to resume; by default, repeat the command.
    """

    exit_code = 4

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(f"{what}; {remedy}" if remedy else what)
        self.what = what
        self.remedy = remedy
