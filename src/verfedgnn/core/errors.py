"""Errors meant for the person who reads them: one line that names the cause and the remedy."""


class VerFedGNNError(Exception):
    """Base of all errors a user can cause and mend; the command line prints it on one line and exits with `exit_code`."""

    exit_code = 2


class DataError(VerFedGNNError):
    """A file or table of ratings cannot be used as it is."""


class ConfigError(VerFedGNNError):
    """A configuration is contradictory, unknown, or asks for something unprotected without naming it."""


class DivergedError(VerFedGNNError):
    """Numbers grew out of bounds while training."""


class RunError(VerFedGNNError):
    """A run folder cannot be written, read or resumed."""


class PluginWarning(UserWarning):
    """A run is opened with other code of its plug-in than it was trained with."""


class ProtocolError(VerFedGNNError):
    """A message is malformed, out of order or out of bounds; its content is never part of the text."""

    exit_code = 3


class Interrupted(VerFedGNNError):
    """A stop was asked for; what was finished is kept. `remedy` says how to go on; without one, by the same command."""

    exit_code = 4

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(f"{what}; {remedy}" if remedy else what)
        self.what = what
        self.remedy = remedy
