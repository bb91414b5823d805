r"""Matching of users across organisations without exchanging lists of users.

Every party turns its ids into pseudonyms that are equal exactly where ids are equal. The coordinator matches the pseudonyms
and answers with row numbers. There are two ways to make them:

keyed: HMAC-SHA256(key, id), with one key that all parties share and the coordinator lacks.

ecdh: an elliptic-curve PRF whose key is split between keyholders. With H hashing onto P-256, keys :math:`k_1, k_2` at two
keyholders and a blinding key r of the party's own, its id x travels as

.. math::
    H(x)^r \to H(x)^{r k_1} \to H(x)^{r k_1 k_2} \to \left(H(x)^{r k_1 k_2}\right)^{1/r} = H(x)^{k_1 k_2}

so that keyholders see uniformly random points, and no one can evaluate the function without both of them. openmined-psi
provides the hash onto the curve and the exponentiation.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from importlib import import_module
from typing import Any
from unicodedata import normalize

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hmac import HMAC
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from verfedgnn.core.errors import ConfigError, ProtocolError

WIDTH = 16
"""Bytes of a pseudonym. Among a billion ids, two collide with probability 1e-21."""
POINT = 33
"""Bytes of a compressed point of P-256."""
_NONCE = 12
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Number of points of P-256, a prime."""


def make_pseudonyms(ids: Sequence[bytes], key: bytes) -> NDArray[np.uint8]:
    """Return the first 128 bits of HMAC-SHA256(key, id) for each id, of shape (n, 16)."""
    keyed = HMAC(key, SHA256())

    def pseudonym(text: bytes) -> bytes:
        mac = keyed.copy()
        mac.update(text)
        return mac.finalize()[:WIDTH]

    return np.frombuffer(b"".join(map(pseudonym, ids)), np.uint8).reshape(-1, WIDTH)


def sort_order(pseudonyms: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the permutation that sorts pseudonyms byte by byte."""
    return np.argsort(_texts(pseudonyms), kind="stable")


def check_set(pseudonyms: NDArray[np.uint8]) -> None:
    """Raise `ProtocolError` unless the pseudonyms are sorted and distinct."""
    texts = _texts(pseudonyms)
    if not np.all(texts[:-1] < texts[1:]):
        raise ProtocolError("its pseudonyms are not sorted, or some occur twice")


def count_shared(sets: Sequence[NDArray[np.uint8]]) -> list[int]:
    """Return for each party how many of its pseudonyms (n_p, 16), sorted and distinct, some other party has, too."""
    users, parties = _number_users(sets)
    return [int((parties[own] > 1).sum()) for own in users]


def _number_users(sets: Sequence[NDArray[np.uint8]]) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
    """Return a number for each pseudonym of each party, equal for equal ones, and the number of parties of each user."""
    _, user, parties = np.unique(_texts(np.concatenate(list(sets))), return_inverse=True, return_counts=True)
    return np.split(user, np.cumsum([len(one) for one in sets])[:-1]), parties


def match_users(
    sets: Sequence[NDArray[np.uint8]], fewest: int, *, probes: int = 0
) -> tuple[list[NDArray[np.int64]], int]:
    """Assign a row, in random order, to every user who is at `fewest` parties or more.

    Args:
        sets: Each party's pseudonyms (n_p, 16), sorted and distinct.
        fewest: Number of parties a user has to be at.
        probes: Number of invented users that all sets contain.

    Returns:
        The row of each pseudonym (n_p,), -1 for users left out, and the number of rows. The number is 0 if several parties
        share no user at all.
    """
    users, parties = _number_users(sets)
    if len(sets) > 1 and (parties > 1).sum() <= probes:
        return [np.full(len(one), -1) for one in sets], 0
    rows = np.full(len(parties), -1)
    placed = np.flatnonzero(parties >= fewest)
    rows[placed] = np.argsort(np.frombuffer(os.urandom(8 * len(placed)), np.uint64), kind="stable")
    return [rows[own] for own in users], len(placed)


def _texts(pseudonyms: NDArray[np.uint8]) -> NDArray[np.bytes_]:
    """Return the pseudonyms as texts of one width, which compare byte by byte."""
    if pseudonyms.dtype != np.uint8 or pseudonyms.ndim != 2 or pseudonyms.shape[1] != WIDTH:
        raise ProtocolError(
            f"pseudonyms are bytes of shape (n, {WIDTH}), not {pseudonyms.dtype} of {pseudonyms.shape}"
        )
    return np.ascontiguousarray(pseudonyms).view(f"S{WIDTH}").reshape(-1)


class Sealer:
    """A key pair for messages to other parties through a relay that must neither read nor change them.

    Each message is sealed by ChaCha20-Poly1305 under HKDF-SHA256 of the X25519 secret, bound to sender, receiver and context.
    It opens only for that receiver, from that sender, in that context. A key pair serves one alignment. Its public key is
    signed with the party's certificate, because the relay passes it on.
    """

    def __init__(self) -> None:
        self._private = X25519PrivateKey.generate()
        self.public = self._private.public_key().public_bytes_raw().hex()
        self._shared: dict[str, bytes] = {}
        """The X25519 secrets with other parties, by their public keys."""

    def seal(self, peer_public: str, context: bytes, data: bytes) -> bytes:
        """Encrypt `data` for the party with that public key: a random nonce, then the ciphertext with its tag."""
        nonce = os.urandom(_NONCE)
        return nonce + self._cipher(peer_public, context, sends=True).encrypt(nonce, data, None)

    def open(self, peer_public: str, context: bytes, sealed: bytes) -> bytes:
        """Decrypt what the party with that public key sealed for this one in the same context."""
        try:
            cipher = self._cipher(peer_public, context, sends=False)
            return cipher.decrypt(sealed[:_NONCE], sealed[_NONCE:], None)
        except (InvalidTag, ValueError):
            problem = "a sealed message was changed on its way, or its sender or receiver is another party"
            raise ProtocolError(problem) from None

    def _cipher(self, peer_public: str, context: bytes, *, sends: bool) -> ChaCha20Poly1305:
        try:
            own = bytes.fromhex(self.public)
            peer = bytes.fromhex(peer_public)
            if peer_public not in self._shared:
                self._shared[peer_public] = self._private.exchange(X25519PublicKey.from_public_bytes(peer))
        except ValueError:
            raise ProtocolError("the public key of the other party is not usable") from None
        if own == peer:
            raise ProtocolError("the relay hands out this party's public key as that of another")
        ways = own + peer if sends else peer + own
        derive = HKDF(SHA256(), length=32, salt=None, info=b"verfedgnn seal 1" + ways + context)
        return ChaCha20Poly1305(derive.derive(self._shared[peer_public]))


class CurveKey:
    """A secret exponent on P-256, drawn at random, and its application to lists of points.

    Lists are bytes, 33 for each point. They keep their order and length.
    """

    def __init__(self) -> None:
        self._key: bytes = _library().client.CreateWithNewKey(True).GetPrivateKeyBytes()

    def blind(self, ids: Sequence[bytes]) -> bytes:
        """Return H(x)^k for each id x."""
        client = _library().client.CreateFromKey(self._key, True)
        return b"".join(client.CreateRequest([sha256(text).digest() for text in ids]).encrypted_elements)

    def apply(self, points: bytes) -> bytes:
        """Return P^k for each point P; refuse anything that is not a point of the curve."""
        return _raise_to(self._key, points)

    def remove(self, points: bytes) -> bytes:
        """Return P^(1/k) for each point P."""
        return _raise_to(pow(int.from_bytes(self._key), -1, _ORDER).to_bytes(32), points)


def hash_points(points: bytes) -> NDArray[np.uint8]:
    """Return the first 128 bits of SHA-256 of each point, of shape (n, 16)."""
    digests = (sha256(points[at : at + POINT]).digest()[:WIDTH] for at in range(0, len(points), POINT))
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, WIDTH)


def _raise_to(key: bytes, points: bytes) -> bytes:
    if len(points) % POINT:
        raise ProtocolError(f"a list of points has {len(points):,} bytes, not a multiple of {POINT}")
    psi = _library()
    elements = [points[start : start + POINT] for start in range(0, len(points), POINT)]
    request = psi.Request(encrypted_elements=elements, reveal_intersection=True)
    try:
        # A server's answer is each element of the request raised to the server's key, in the order of the request.
        raised = psi.server.CreateFromKey(key, True).ProcessRequest(request).encrypted_elements
    except (RuntimeError, ValueError):
        raise ProtocolError("a list of points holds something that is not a point of the curve") from None
    return b"".join(raised)


def _library() -> Any:
    try:
        return import_module("private_set_intersection.python")
    except ImportError:
        raise ConfigError(
            "alignment by ecdh needs openmined-psi; run in a checkout: pip install '.[psi]'"
        ) from None


# Normalisation of user ids, so that organisations that spell an id differently still match it.
#
# Pseudonyms of `Ann@X.org ` and `ann@x.org` would have nothing in common. Ids are normalised as most sign-in systems do: Unicode
# NFKC, case folded, white space trimmed and collapsed, and e-mail addresses reduced to the mailbox. Dots and `+tags` are dropped
# for Gmail only; elsewhere they may belong to different people.


_GMAIL = ("gmail.com", "googlemail.com")


def normalise_ids(ids: NDArray[np.str_]) -> NDArray[np.str_]:
    """Return the normalised form of each id; normalising twice changes nothing."""
    return np.array([_form(text) for text in ids.tolist()], np.str_)


def select_unambiguous(ids: NDArray[np.str_]) -> tuple[NDArray[np.str_], NDArray[np.int64]]:
    """Return the normalised forms that are not empty and belong to a single row of `ids`, and those rows.

    Rows whose forms collide are left out, because nobody can tell which of them another organisation means.
    """
    forms = normalise_ids(ids)
    times = Counter(forms.tolist())
    rows = np.array([row for row, form in enumerate(forms.tolist()) if form and times[form] == 1], np.int64)
    return forms[rows], rows


def _form(text: str) -> str:
    if text.isascii() and "@" not in text:  # most ids need one pass only
        return _spaced(text.lower())
    text = normalize("NFKC", text)
    # A step can enable an earlier one: without a space, an accent joins its letter. So repeat until nothing changes.
    # This ends, because case folding and NFKC settle within a few passes and everything else shortens the text.
    while (form := _mailbox(_spaced(normalize("NFKC", text.casefold())))) != text:
        text = form
    return form


def _spaced(text: str) -> str:
    # Fixed-width NumPy text cannot end in NUL, so NULs count as white space and are trimmed.
    return " ".join(text.replace("\0", " ").split())


def _mailbox(text: str) -> str:
    """Return an e-mail address without display name, `mailto:` and spaces; return any other text unchanged."""
    if "@" not in text:
        return text
    address = text[text.rfind("<") + 1 : -1] if "<" in text and text.endswith(">") else text
    local, _, domain = address.replace(" ", "").removeprefix("mailto:").partition("@")
    if not local or not domain or "@" in domain:
        return text
    if domain in _GMAIL:
        domain = _GMAIL[0]
        local = local.partition("+")[0].replace(".", "") or local
    return f"{local}@{domain}"
