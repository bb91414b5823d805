r"""Which users all organisations have in common, and one order of rows for them, without exchanging lists of users.

Among parties that share a key, ids travel as pseudonyms HMAC-SHA256(key, id) and whoever lacks the key may intersect them.
Two parties without a common key use private set intersection over an elliptic curve (P-256, H hashes onto it): the client
sends :math:`H(x)^a`, the server answers :math:`H(x)^{ab}` and its own :math:`H(y)^b`; the client takes its secret off,

.. math::
    \left(H(x)^{ab}\right)^{1/a} = H(x)^b \in \{H(y)^b\} \iff x \in Y

The client learns which of its ids the server has, and how many the server has; the server learns how many the client has.
Both follow the protocol: a client that asks for guessed ids is told whether they are there, as for any other.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from hashlib import sha256
from importlib import import_module
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hmac import HMAC
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from verfedgnn.core.errors import ConfigError, DataError, ProtocolError, VerFedGNNError

WIDTH = 16
"""Bytes of a pseudonym: among a billion ids two meet with a chance of 1e-21."""

Each = Callable[..., Iterator[Any]]
"""The built-in `map`, or that of a pool of processes."""

_NONCE = 12


def pseudonyms(ids: NDArray[np.str_], key: bytes) -> NDArray[np.uint8]:
    """HMAC-SHA256(key, id), the first 128 bits of it, of shape (n, 16): to whoever lacks the key, random numbers."""
    keyed = HMAC(key, SHA256())

    def pseudonym(text: str) -> bytes:
        mac = keyed.copy()
        mac.update(text.encode())
        return mac.finalize()[:WIDTH]

    return np.frombuffer(b"".join(map(pseudonym, ids.tolist())), np.uint8).reshape(-1, WIDTH)


def order_of_rows(pseudonyms: NDArray[np.uint8]) -> NDArray[np.int64]:
    """The permutation that sorts pseudonyms byte by byte: the order everybody shares and that says nothing of the ids."""
    high, low = _words(pseudonyms)
    return np.lexsort((low, high))


def common(sets: Sequence[NDArray[np.uint8]]) -> list[NDArray[np.bool_]]:
    """For each party's pseudonyms, sorted and without repetition, which of them every party has.

    Shapes: (n_p, 16) in, (n_p,) out. Each set holds a pseudonym at most once, so one that all hold occurs `len(sets)` times.
    """
    if not sets:
        return []
    for number, one in enumerate(sets):
        high, low = _words(one)
        if not np.all((high[:-1] < high[1:]) | ((high[:-1] == high[1:]) & (low[:-1] < low[1:]))):
            raise ProtocolError(f"the pseudonyms of party {number} are not in order, or some occur twice")
    every = np.concatenate(list(sets))
    order = order_of_rows(every)
    high, low = (word[order] for word in _words(every))
    first = np.ones(len(every), bool)
    first[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    group = np.cumsum(first) - 1
    held = np.empty(len(every), bool)
    held[order] = (np.bincount(group) == len(sets))[group]
    return np.split(held, np.cumsum([len(one) for one in sets])[:-1])


def _words(pseudonyms: NDArray[np.uint8]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """The two halves of each pseudonym as numbers that compare like its bytes."""
    if pseudonyms.dtype != np.uint8 or pseudonyms.ndim != 2 or pseudonyms.shape[1] != WIDTH:
        raise ProtocolError(
            f"pseudonyms are bytes of shape (n, {WIDTH}), not {pseudonyms.dtype} of {pseudonyms.shape}"
        )
    words = np.ascontiguousarray(pseudonyms).view(">u8").astype(np.uint64)
    return words[:, 0], words[:, 1]


class Sealer:
    """One party's key pair, with which it sends to another through a relay that must not read or change what passes.

    The key of a message is HKDF-SHA256 of the X25519 secret, bound to sender, receiver and context, so a message opens only
    where, from whom and for what it was meant; ChaCha20-Poly1305 seals it. A key pair serves one alignment. Public keys
    that come through the relay are its word only: parties that distrust it compare them over another channel.
    """

    def __init__(self) -> None:
        self._private = X25519PrivateKey.generate()
        self.public = self._private.public_key().public_bytes_raw().hex()

    def seal(self, peer_public: str, context: bytes, data: bytes) -> bytes:
        """`data` for the party with that public key only: a random nonce, then the ciphertext with its tag."""
        nonce = os.urandom(_NONCE)
        return nonce + self._cipher(peer_public, context, sends=True).encrypt(nonce, data, None)

    def open(self, peer_public: str, context: bytes, sealed: bytes) -> bytes:
        """What the party with that public key sealed for this one in the same context."""
        try:
            return self._cipher(peer_public, context, sends=False).decrypt(
                sealed[:_NONCE], sealed[_NONCE:], None
            )
        except (InvalidTag, ValueError):
            raise ProtocolError(
                "a sealed message was changed on its way, or is not from the party it names or not for this one"
            ) from None

    def _cipher(self, peer_public: str, context: bytes, *, sends: bool) -> ChaCha20Poly1305:
        try:
            own, peer = bytes.fromhex(self.public), bytes.fromhex(peer_public)
            shared = self._private.exchange(X25519PublicKey.from_public_bytes(peer))
        except ValueError:
            raise ProtocolError("the public key of the other party is not usable") from None
        if own == peer:
            raise ProtocolError("the relay hands out this party's public key as that of another")
        ways = own + peer if sends else peer + own
        derive = HKDF(SHA256(), length=32, salt=None, info=b"verfedgnn seal 1" + ways + context)
        return ChaCha20Poly1305(derive.derive(shared))


@contextmanager
def workers(processes: int) -> Iterator[Each]:
    """A `map` over so many processes, for all steps of an alignment; with one, the built-in `map` in this process.

    Make it once: a process imports what it needs anew (this one has threads, so no fork).
    """
    if processes == 1:
        yield map
        return
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), initializer=_begin_worker)
    try:
        yield pool.map
    finally:
        pool.shutdown(cancel_futures=True)


def _begin_worker() -> None:
    """Ctrl-C is the parent's business; its death, even a sudden one, is the worker's too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


class PsiClient:
    """The side that learns which of its ids, all different, the server has too."""

    def __init__(self, ids: NDArray[np.str_], buckets: int, each: Each = map) -> None:
        _library()
        self._size, self._each = len(ids), each
        self._elements, self._rows = _bucketed(ids, buckets)
        self._keys: list[bytes] = []

    def request(self) -> list[bytes]:
        """The encrypted ids, one message per bucket, under a fresh key each."""
        self._keys, requests = _columns(_all(self._each, _request, self._elements))
        return requests

    def intersection(self, setups: list[bytes], responses: list[bytes]) -> NDArray[np.bool_]:
        """Which of the ids the server has, from its answer to the last request."""
        if not len(setups) == len(responses) == len(self._keys):
            raise ProtocolError("the answer does not have as many buckets as the request")
        asked = [len(elements) for elements in self._elements]
        held = np.zeros(self._size, bool)
        for rows, found in zip(
            self._rows, _all(self._each, _found, self._keys, asked, setups, responses), strict=True
        ):
            held[rows] = found[: len(rows)]  # what follows is padding
        return held


class PsiServer:
    """The side that answers; it learns how many ids the client has."""

    def __init__(self, ids: NDArray[np.str_], buckets: int, each: Each = map) -> None:
        _library()
        self._each = each
        self._elements, _ = _bucketed(ids, buckets)

    def answer(self, requests: list[bytes]) -> tuple[list[bytes], list[bytes]]:
        """The server's own encrypted ids and the client's encrypted twice, one message per bucket, under a fresh key each."""
        if len(requests) != len(self._elements):
            raise ProtocolError("the request does not have as many buckets as this party was told")
        return _columns(_all(self._each, _answer, self._elements, requests))


def _bucketed(ids: NDArray[np.str_], buckets: int) -> tuple[list[list[bytes]], list[NDArray[np.int64]]]:
    """The SHA-256 of each id by bucket, its own first 64 bits modulo `buckets`, then padding; and the row of each id.

    Equal ids meet in one bucket, so buckets can be intersected apart and at the same time. Each is filled up with random
    elements to a size that follows from the number of ids alone (Bernstein's bound), so its size says nothing of the ids in
    it. One in a million sets does not fit; then all buckets grow to the fullest one's size, which says about as little.
    """
    digests = [sha256(text.encode()).digest() for text in ids.tolist()]
    if len(set(digests)) != len(digests):
        raise DataError("some ids occur twice: keep one of each before looking for common users")
    bucket = np.array([int.from_bytes(digest[:8]) % buckets for digest in digests], np.int64)
    rows = [np.flatnonzero(bucket == number) for number in range(buckets)]
    mean, slack = len(ids) / buckets, math.log(buckets * 1e6)
    size = min(len(ids), math.ceil(mean + math.sqrt(2 * mean * slack) + slack / 3))
    size = max(size, *map(len, rows))
    return [
        [digests[row] for row in own] + [os.urandom(32) for _ in range(size - len(own))] for own in rows
    ], rows


def _request(elements: list[bytes]) -> tuple[bytes, bytes]:
    client = _library().client.CreateWithNewKey(True)
    return client.GetPrivateKeyBytes(), client.CreateRequest(elements).SerializeToString()


def _answer(elements: list[bytes], request: bytes) -> tuple[bytes, bytes]:
    psi = _library()
    server = psi.server.CreateWithNewKey(True)
    # RAW is the list of encrypted elements itself: no false positives, while filters of a few bits per element have some.
    setup = server.CreateSetupMessage(
        0.5, len(elements), elements, psi.DataStructure.RAW
    )  # 0.5 is for filters: not used
    with _untrusted():
        response = server.ProcessRequest(psi.Request.FromString(request))
    return setup.SerializeToString(), response.SerializeToString()


def _found(key: bytes, asked: int, setup: bytes, response: bytes) -> NDArray[np.bool_]:
    psi = _library()
    with _untrusted():
        theirs, ours = psi.ServerSetup.FromString(setup), psi.Response.FromString(response)
        if not theirs.HasField("raw") or len(ours.encrypted_elements) != asked:
            raise ProtocolError("the answer of the private set intersection is not one to this request")
        held = np.zeros(asked, bool)
        held[psi.client.CreateFromKey(key, True).GetIntersection(theirs, ours)] = True
    return held


@contextmanager
def _untrusted() -> Iterator[None]:
    """Refuses what the library cannot parse or decode, without its text."""
    try:
        yield
    except (RuntimeError, ValueError, import_module("google.protobuf.message").DecodeError):
        raise ProtocolError("a message of the private set intersection is malformed") from None


def _all(each: Each, work: Callable[..., Any], *columns: Sequence[Any]) -> list[Any]:
    try:
        return list(each(work, *columns))
    except BrokenProcessPool:
        raise VerFedGNNError(
            "a process that intersects users ended early: use one process, give the machine more memory,"
            " or, in a script of your own, start under `if __name__ == '__main__':`"
        ) from None


def _columns(pairs: list[tuple[bytes, bytes]]) -> tuple[list[bytes], list[bytes]]:
    return [first for first, _ in pairs], [second for _, second in pairs]


def _library() -> Any:
    try:
        return import_module("private_set_intersection.python")
    except ImportError:
        raise ConfigError(
            "private set intersection needs openmined-psi: pip install 'verfedgnn[psi]'"
        ) from None
