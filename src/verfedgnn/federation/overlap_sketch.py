"""A sketch of a party's users, from which one other party estimates how many users both have, before they train.

The sketch is a random sample: the smallest values of HMAC-SHA256(key, id), of at most one in ten users and at most 1,024. The
key is HKDF-SHA256 of the ECDH secret of the two parties' keys in the roster, so no third party and not the coordinator can
compute it, and every sketch of the pair samples the same users. The receiver counts how many of the sample it has, too:

    share = found / sampled, with an exact binomial interval (Clopper and Pearson) of 95 %
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hmac import HMAC
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from verfedgnn.core.errors import ConfigError, DataError
from verfedgnn.data.ids import StrArray
from verfedgnn.federation.roster import MemberIdentity
from verfedgnn.privacy.id_matching import make_pseudonyms, select_unambiguous

MOST_SAMPLED = 1024
"""Number of users in a sketch at most. The interval of a share is then at most 6.3 percentage points wide."""
USERS_PER_SAMPLED = 10
"""Number of users for each one in the sketch, at least: the receiver learns about one user in ten at most."""
_LARGEST_FILE = 1 << 20
_KEY_BYTES = 32


class OverlapSketch(BaseModel):
    """The content of a sketch file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sender: str
    receiver: str
    agreement: str
    """SHA-256 of the agreement."""
    users: int = Field(ge=1, lt=2**53)
    """Number of the sender's users with an unambiguous id."""
    pseudonyms: list[Annotated[str, Field(pattern="^[0-9a-f]{32}$")]] = Field(
        min_length=1, max_length=MOST_SAMPLED
    )
    """The sample, sorted."""
    code: str = Field(pattern="^[0-9a-f]{64}$")
    """HMAC-SHA256 of all other fields."""


@dataclass(frozen=True)
class OverlapEstimate:
    """How many of the sender's users the receiver has, too."""

    sender: str
    users: int
    """Number of the sender's users."""
    own_users: int
    """Number of the receiver's users."""
    sampled: int
    found: int
    """Number of sampled users whom the receiver has."""
    share: float
    low: float
    high: float
    """Ends of the interval of `share`, 95 %."""

    def own_share(self, share: float) -> float:
        """Return which share of the receiver's users a share of the sender's users is."""
        return min(1.0, share * self.users / self.own_users)


def make_sketch(identity: MemberIdentity, receiver: str, ids: StrArray) -> bytes:
    """Return a sketch of the users in `ids` for one other party, as JSON."""
    forms, _ = select_unambiguous(ids)
    sampled = min(MOST_SAMPLED, len(forms) // USERS_PER_SAMPLED)
    if not sampled:
        few = f"{len(forms)} have an unambiguous id"
        raise DataError(f"a sketch needs {USERS_PER_SAMPLED} users or more, and {few}")
    key, code_key = _derive_keys(identity, receiver)
    sketch = OverlapSketch(
        sender=identity.name,
        receiver=receiver,
        agreement=identity.agreement.digest(),
        users=len(forms),
        pseudonyms=sorted(_pseudonyms(forms, key))[:sampled],
        code="0" * 64,
    )
    signed = sketch.model_copy(update={"code": _authenticate(sketch, code_key).finalize().hex()})
    return signed.model_dump_json(indent=1).encode() + b"\n"


def estimate_overlap(identity: MemberIdentity, path: Path, ids: StrArray) -> OverlapEstimate:
    """Compare another party's sketch with the users in `ids`."""
    from scipy.special import betaincinv

    sketch = _read_sketch(identity, path)
    key, code_key = _derive_keys(identity, sketch.sender)
    try:
        _authenticate(sketch, code_key).verify(bytes.fromhex(sketch.code))
    except InvalidSignature:
        raise ConfigError(f"{path} was changed, or {sketch.sender} did not make it") from None
    forms, _ = select_unambiguous(ids)
    if not len(forms):
        raise DataError("no user has an unambiguous id: check the column of users")
    sampled = len(sketch.pseudonyms)
    found = len(set(sketch.pseudonyms) & set(_pseudonyms(forms, key)))
    return OverlapEstimate(
        sender=sketch.sender,
        users=sketch.users,
        own_users=len(forms),
        sampled=sampled,
        found=found,
        share=found / sampled,
        low=float(betaincinv(found, sampled - found + 1, 0.025)) if found else 0.0,
        high=float(betaincinv(found + 1, sampled - found, 0.975)) if found < sampled else 1.0,
    )


def _read_sketch(identity: MemberIdentity, path: Path) -> OverlapSketch:
    """Read a file that somebody else wrote, and check that it is meant for this party under this agreement."""
    try:
        with path.open("rb") as file:
            sketch = OverlapSketch.model_validate_json(file.read(_LARGEST_FILE))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except ValidationError:
        raise ConfigError(f"{path} is not a sketch that `doctor --sketch-for` wrote") from None
    if sketch.receiver != identity.name:
        remedy = f"ask for one made with --sketch-for {identity.name}"
        raise ConfigError(f"{path} is not for {identity.name}; {remedy}")
    if sketch.agreement != identity.agreement.digest():
        remedy = "compare federation.toml with the sender's"
        raise ConfigError(f"{path} was made under another agreement; {remedy}")
    return sketch


def _derive_keys(identity: MemberIdentity, peer: str) -> tuple[bytes, bytes]:
    """Return two keys that only this party and `peer` can compute: for pseudonyms and for the code.

    They do not depend on the agreement: another sample for every changed agreement would in time cover everybody.
    """
    secret = identity.shared_secret(peer)
    info = b"verfedgnn overlap sketch"
    derived = HKDF(SHA256(), length=2 * _KEY_BYTES, salt=None, info=info).derive(secret)
    return derived[:_KEY_BYTES], derived[_KEY_BYTES:]


def _pseudonyms(forms: StrArray, key: bytes) -> list[str]:
    return [row.tobytes().hex() for row in make_pseudonyms([form.encode() for form in forms.tolist()], key)]


def _authenticate(sketch: OverlapSketch, key: bytes) -> HMAC:
    mac = HMAC(key, SHA256())
    mac.update(json.dumps(sketch.model_dump(exclude={"code"}), sort_keys=True).encode())
    return mac
