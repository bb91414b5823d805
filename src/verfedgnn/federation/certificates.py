"""Keys and certificates: ECDSA P-256 throughout, under one authority that the coordinator runs.

A private key is created on the machine where it stays. Only certificate requests and certificates travel, as PEM text.
"""

from __future__ import annotations

import hashlib
import os
import re
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeGuard

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.hazmat.primitives.serialization import load_pem_private_key as load_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from verfedgnn.core.errors import ConfigError
from verfedgnn.core.files import read_private, write_bytes

Key = ec.EllipticCurvePrivateKey
PublicKey = ec.EllipticCurvePublicKey

COORDINATOR = "server"
"""Name of the coordinator in its certificate, reserved for it."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_SKEW = timedelta(hours=1)
"""Time by which a certificate is backdated, for machines whose clocks are slow."""
_REQUEST = "create it with `verfedgnn federation join-request`"


class CertificateError(ConfigError):
    """An unusable key, request or certificate; also a ValueError, so that pydantic reports it."""


def check_name(name: str) -> str:
    """Return `name` if it is safe in a certificate, a file name and a log line; raise `CertificateError` otherwise."""
    if not _NAME.fullmatch(name) or name == "unset":  # "unset" is how our TOML files spell null
        rule = "use 1 to 63 letters, digits, - and _, starting with a letter or digit"
        raise CertificateError(f"{name[:80]!a} cannot be a name; {rule}")
    return name


def new_key() -> Key:
    """Generate a private key."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: Key) -> bytes:
    """Return a private key as PEM, not encrypted because services start without anybody at hand."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def write_file(path: Path, data: bytes) -> None:
    """Write a file of a federation folder for its owner alone; an interruption leaves the previous one intact."""
    try:
        write_bytes(path, data)
    except OSError as error:
        remedy = "free some space or choose another folder"
        raise CertificateError(f"cannot write {path}: {error.strerror or error}; {remedy}") from None


def write_secret(path: Path, data: bytes) -> None:
    """Write a new file that at no time anybody but its owner can read."""
    if os.path.lexists(path):
        remedy = "move it or choose another folder"
        raise CertificateError(f"{path} exists already and is not overwritten; {remedy}")
    write_file(path, data)


def read_key(path: Path) -> Key:
    """Read a private key; raise `ConfigError` if other users can read its file."""
    remedy = "pass the file that verfedgnn wrote"
    try:
        pem = read_private(path)
    except OSError as error:
        raise CertificateError(f"cannot read the key {path}: {error.strerror or error}") from None
    try:
        key = load_key(pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise CertificateError(f"{path} holds no unencrypted private key in PEM; {remedy}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise CertificateError(f"the key {path} is not an ECDSA P-256 key; {remedy}")
    return key


def new_authority(name: str, days: int = 3650) -> tuple[Key, str]:
    """Create the key and self-signed certificate of an authority, which can sign members but no further authorities."""
    key = new_key()
    # the organisation distinguishes it from a party of the same name
    subject = _subject(name, x509.NameAttribute(NameOID.ORGANIZATION_NAME, "verfedgnn authority"))
    return key, _sign_certificate(
        subject, key.public_key(), datetime.now(UTC) + timedelta(days=days), subject, key
    )


def make_request(key: Key, name: str) -> str:
    """Return a certificate request for `name`, signed with its key."""
    return _pem(x509.CertificateSigningRequestBuilder().subject_name(_subject(name)).sign(key, SHA256()))


def read_request(csr_pem: str) -> tuple[str, PublicKey]:
    """Return the name and public key of a request, after checking that its sender holds the private key.

    The other content of the request is ignored.
    """
    if "PRIVATE KEY" in csr_pem:
        secret = "this is a private key, which must never leave its machine"
        raise CertificateError(f"{secret}; pass the request, the file ending in .csr")
    try:
        csr = x509.load_pem_x509_csr(csr_pem.encode())
        key, names, is_signed = csr.public_key(), _common_names(csr.subject), csr.is_signature_valid
    except (ValueError, UnsupportedAlgorithm):
        raise CertificateError(f"this is not a certificate request in PEM; {_REQUEST}") from None
    if not is_signed:
        raise CertificateError(f"the request is not signed with the key it is for; {_REQUEST}")
    if not _is_p256(key):
        raise CertificateError(f"the request is not for an ECDSA P-256 key; {_REQUEST}")
    if len(names) != 1:
        raise CertificateError(f"the request has {len(names)} names instead of one; {_REQUEST}")
    return check_name(names[0]), key


def issue(ca_key: Key, ca_cert: str, csr_pem: str, days: int = 825, server: bool = False) -> str:
    """Sign the name and public key of a request and return the certificate."""
    authority = Certificate(ca_cert, "the authority")
    if key_fingerprint(ca_key) != authority.key_fingerprint:
        remedy = "use the two files of one federation"
        raise CertificateError(f"the authority's key does not belong to its certificate; {remedy}")
    if authority.end <= datetime.now(UTC):
        remedy = "create a new federation with `verfedgnn federation init`"
        raise CertificateError(f"the authority expired on {authority.end.date()}; {remedy}")
    name, key = read_request(csr_pem)
    if not server and name.lower() == COORDINATOR:
        raise CertificateError(f"'{name}' is reserved for the coordinator; choose another name")
    if server and name != COORDINATOR:
        raise CertificateError(f"the coordinator's certificate is for '{COORDINATOR}', not for '{name}'")
    role = ExtendedKeyUsageOID.SERVER_AUTH if server else ExtendedKeyUsageOID.CLIENT_AUTH
    extensions = (
        x509.ExtendedKeyUsage([role]),
        x509.SubjectAlternativeName([x509.DNSName(name)]),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()),
    )
    end = min(datetime.now(UTC) + timedelta(days=days), authority.end)
    return _sign_certificate(_subject(name), key, end, authority.x509.subject, ca_key, extensions)


def _sign_certificate(
    subject: x509.Name,
    key: PublicKey,
    until: datetime,
    issuer: x509.Name,
    issuer_key: Key,
    extensions: Sequence[x509.ExtensionType] = (),
) -> str:
    """Return a certificate in PEM; one whose issuer is its subject can sign others."""
    signs = subject == issuer
    never = ("content_commitment", "key_encipherment", "data_encipherment", "encipher_only", "decipher_only")
    usage = x509.KeyUsage(
        digital_signature=not signs, key_agreement=not signs, key_cert_sign=signs, crl_sign=signs,
        **dict.fromkeys(never, False),
    )  # fmt: skip
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - _SKEW)
        .not_valid_after(until)
        .add_extension(x509.BasicConstraints(ca=signs, path_length=0 if signs else None), critical=True)
        .add_extension(usage, critical=True)
    )
    for extension in (x509.SubjectKeyIdentifier.from_public_key(key), *extensions):
        builder = builder.add_extension(extension, critical=False)
    return _pem(builder.sign(issuer_key, SHA256()))


class Certificate:
    """The only certificate in some PEM, with an ECDSA P-256 key; `whose` names its owner in errors."""

    def __init__(self, pem: str, whose: str = "this member") -> None:
        self.whose = whose
        try:
            certificates = x509.load_pem_x509_certificates(pem.encode())
            keys = [certificate.public_key() for certificate in certificates]
        except (ValueError, UnsupportedAlgorithm):
            remedy = "get federation.toml from the coordinator again"
            raise CertificateError(f"the certificate of {whose} cannot be read; {remedy}") from None
        if len(keys) != 1 or not _is_p256(keys[0]):
            rule = "must be a single one with an ECDSA P-256 key"
            raise CertificateError(f"the certificate of {whose} {rule}; create it with verfedgnn")
        self.x509 = certificates[0]
        self.key = keys[0]
        self.key_fingerprint = key_fingerprint(self.key)
        self.pem = _pem(self.x509)
        """The certificate without any text around it."""
        self.start, self.end = self.x509.not_valid_before_utc, self.x509.not_valid_after_utc
        """Times from which and until which it is valid."""
        self.fingerprint = self.x509.fingerprint(SHA256()).hex()
        """SHA-256 in the 64 hex digits by which it is pinned."""

    @property
    def name(self) -> str:
        """The name in the certificate."""
        names = []
        with suppress(ValueError):
            names = _common_names(self.x509.subject)
        if len(names) != 1:
            rule = "must hold exactly one name; create it with verfedgnn"
            raise CertificateError(f"the certificate of {self.whose} {rule}")
        return names[0]

    def issued_by(self, authority: Certificate) -> bool:
        """Return whether `authority` signed this certificate."""
        with suppress(ValueError, TypeError, InvalidSignature):
            self.x509.verify_directly_issued_by(authority.x509)
            return True
        return False

    def verify(self, signature: bytes, data: bytes) -> bool:
        """Return whether the holder of the certificate's key signed `data`."""
        with suppress(InvalidSignature):
            self.key.verify(signature, data, ec.ECDSA(SHA256()))
            return True
        return False


def sign(key: Key, data: bytes) -> bytes:
    """Return the ECDSA signature over the SHA-256 of `data`."""
    return key.sign(data, ec.ECDSA(SHA256()))


def tls_context(*, server: bool, authority: str, certificate: str, key: bytes) -> ssl.SSLContext:
    """Return a context for mutual TLS 1.3 with a certificate and its private key, both in PEM.

    Host names are not checked, because the peer's certificate is pinned.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=authority)
    with _as_file(certificate.encode()) as certificate_file, _as_file(key) as key_file:
        context.load_cert_chain(certificate_file, key_file)
    return context


@contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """Yield a name under which `data` can be read once: the ssl module takes names only, and a key stays off the disk."""
    reader, writer = os.pipe()
    try:
        with open(writer, "wb") as file:
            file.write(data)
        yield f"/dev/fd/{reader}"
    finally:
        os.close(reader)


def pinned_tls(roster: Mapping[str, str], refused: Callable[[str], object]) -> type[ssl.SSLObject]:
    """Return a class of TLS connections whose handshake fails unless the peer's certificate is in the roster."""

    class PinnedTls(ssl.SSLObject):
        def do_handshake(self) -> None:
            try:
                super().do_handshake()
            except ssl.SSLError as error:
                if not isinstance(error, ssl.SSLWantReadError | ssl.SSLWantWriteError):
                    refused(f"TLS handshake failed ({error_reason(error)})")
                raise
            if peer_fingerprint(self) not in roster:
                subject: Any = (self.getpeercert() or {}).get("subject", ())  # the authority signed it
                names = (value for part in subject for key, value in part if key == "commonName")
                reason = f"the certificate of {next(names, 'an unnamed peer')} is not in the roster"
                refused(reason)
                raise ssl.SSLCertVerificationError(reason)

    return PinnedTls


def peer_fingerprint(tls: ssl.SSLObject) -> str:
    """Return the SHA-256 of the certificate of the other end."""
    return hashlib.sha256(tls.getpeercert(binary_form=True) or b"").hexdigest()


def error_reason(error: OSError) -> str:
    """Return the reason of an error without any text from the peer."""
    if error.errno is not None and error.errno > 0 and not isinstance(error, ssl.SSLError):
        return os.strerror(error.errno)  # asyncio's own text repeats the address
    return getattr(error, "reason", None) or error.strerror or str(error) or type(error).__name__


def key_fingerprint(key: Key | PublicKey) -> str:
    """Return the SHA-256 of a public key in 64 hex digits, the same before and after it has a certificate."""
    public = key.public_key() if isinstance(key, ec.EllipticCurvePrivateKey) else key
    return hashlib.sha256(public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def short_fingerprint(digits: str) -> str:
    """Return the first 32 digits (128 bits) of a fingerprint in groups of four, to be read out by phone."""
    return " ".join(digits[i : i + 4] for i in range(0, min(len(digits), 32), 4))


def _is_p256(key: object) -> TypeGuard[PublicKey]:
    return isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)


def _common_names(subject: x509.Name) -> list[str]:
    return [str(attribute.value) for attribute in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]


def _subject(name: str, *organisation: x509.NameAttribute[str]) -> x509.Name:
    return x509.Name([*organisation, x509.NameAttribute(NameOID.COMMON_NAME, check_name(name))])


def _pem(thing: x509.Certificate | x509.CertificateSigningRequest) -> str:
    return thing.public_bytes(Encoding.PEM).decode()
