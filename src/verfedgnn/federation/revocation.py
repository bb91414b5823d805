"""Certificates that are revoked while a training runs: the coordinator looks at its federation.toml and locks their holders out."""

from __future__ import annotations

from verfedgnn.core.errors import ConfigError
from verfedgnn.federation.agreement import FILE, Agreement, load_agreement
from verfedgnn.federation.certificates import certificate_key
from verfedgnn.federation.event_log import log_warning
from verfedgnn.federation.identity import MemberIdentity


class RevocationWatch:
    """The coordinator's federation.toml, read again whenever it was replaced."""

    def __init__(self, identity: MemberIdentity) -> None:
        self.agreement = identity.agreement
        self._file = identity.key_file.parent / FILE
        self._seen = self._version()

    def find(self) -> list[str]:
        """Return parties of the running agreement whose keys a new file no longer has; [] if the file is the same."""
        version = self._version()
        if version is None or version == self._seen:
            return []
        self._seen = version
        try:
            present = _list_keys(load_agreement(self._file, dates=False))
        except ConfigError as error:
            log_warning("federation.toml was replaced and cannot be read", reason=str(error))
            return []
        return [
            party.name
            for party in self.agreement.parties
            if certificate_key(party.certificate) not in present
        ]

    def _version(self) -> tuple[int, int] | None:
        try:
            about = self._file.stat()
        except OSError:
            return None
        return about.st_mtime_ns, about.st_ino


def _list_keys(agreement: Agreement) -> set[str]:
    return {certificate_key(party.certificate) for party in agreement.parties}
