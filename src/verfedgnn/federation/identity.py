"""Who this side is: its key, its place in the roster, the agreed code, and what it signs and checks with them."""

from __future__ import annotations

from pathlib import Path

from verfedgnn import plugins
from verfedgnn.core.errors import ConfigError, ProtocolError
from verfedgnn.federation.agreement import Agreement, Member
from verfedgnn.federation.certificates import COORDINATOR, read_key, same_key, sign, verify
from verfedgnn.plugins import origin


class MemberIdentity:
    """A member of the roster, recognised by its private key; vouches for keys and checks those of others."""

    def __init__(self, agreement: Agreement, key_file: Path) -> None:
        self.agreement, self.key_file = agreement, key_file
        self._key = read_key(key_file)
        members = [
            m for m in (agreement.coordinator, *agreement.parties) if same_key(self._key, m.certificate)
        ]
        if not members:
            raise ConfigError(
                f"the key {key_file} belongs to nobody in federation {agreement.name}; "
                "let the coordinator approve its request, then take over the new federation file"
            )
        self.member: Member = members[0]
        _check_code(agreement, "the coordinator" if self.is_coordinator else self.name)

    @property
    def name(self) -> str:
        """As in the roster."""
        return self.member.name

    @property
    def is_coordinator(self) -> bool:
        """Whether this is the coordinator's key."""
        return self.name == COORDINATOR

    @property
    def index(self) -> int:
        """A party's place in the roster."""
        return [party.name for party in self.agreement.parties].index(self.name)

    def sign(self, purpose: str, key: str) -> str:
        """This party's signature under its own key for one purpose in this federation."""
        return sign(self._key, _statement(self.agreement, purpose, self.name, key)).hex()

    def check(self, purpose: str, party: int, key: str, signature: str) -> None:
        """Raise `ProtocolError` unless the party at that place signed `key` for that purpose with its pinned certificate."""
        check_key(self.agreement, purpose, party, key, signature)


def _check_code(agreement: Agreement, name: str) -> None:
    """Refuse other code of a plug-in's GNN than was agreed on: weights of one shape would add up, to nonsense."""
    model = agreement.config.model
    here = plugins.gnn_code(model.gnn, model.form)
    if model.gnn in plugins.GNNS or (
        here and model.code and origin.digest(here) == origin.digest(model.code)
    ):
        return
    if here is None:
        raise ConfigError(
            f"{name} has GNN '{model.gnn}' in no file, so its code cannot be compared; {plugins.REMEDY}"
        )
    if model.code is None:
        raise ConfigError(
            f"federation {agreement.name} did not agree on the code of GNN '{model.gnn}'; "
            f"begin it anew with `verfedgnn federation init`; {name} has {origin.shown(here)}"
        )
    raise ConfigError(
        f"{name} has other code of GNN '{model.gnn}' than federation {agreement.name} agreed on: {origin.shown(here)} here, "
        f"{origin.shown(model.code)} agreed; get the agreed version from the others, install it or give it with --plugin, "
        "or begin a federation with yours"
    )


def check_key(agreement: Agreement, purpose: str, party: int, key: str, signature: str) -> None:
    """Raise `ProtocolError` unless the party at that place of the roster signed `key` for that purpose."""
    if not party < len(agreement.parties):
        raise ProtocolError("a key of a party that is not in the roster")
    member = agreement.parties[party]
    try:
        genuine = verify(
            member.certificate, bytes.fromhex(signature), _statement(agreement, purpose, member.name, key)
        )
    except ValueError:
        genuine = False
    if not genuine:
        raise ProtocolError(
            f"the coordinator hands out a key as {member.name}'s that {member.name} did not sign"
        )


def _statement(agreement: Agreement, purpose: str, name: str, key: str) -> bytes:
    return "\n".join(("verfedgnn 1", purpose, agreement.digest(), name, key)).encode()
