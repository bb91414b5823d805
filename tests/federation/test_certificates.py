"""Keys, requests and certificates: what the authority signs and refuses, and what TLS accepts."""

from __future__ import annotations

import os
import socket
import ssl
import stat
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from verfedgnn.core.errors import ConfigError
from verfedgnn.federation import certificates as c

Authority = tuple[c.Key, str]


@pytest.fixture(scope="module")
def authority() -> Authority:
    return c.new_authority("trial")


def forged(names: list[str], key: c.Key | None = None) -> str:
    """Return a request with names and extensions that `make_request` never writes."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("server")]), critical=False)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return builder.sign(key or c.new_key(), SHA256()).public_bytes(Encoding.PEM).decode()


def test_a_secret_is_never_open_and_never_overwritten(tmp_path: Path) -> None:
    path, key = tmp_path / "key.pem", c.new_key()
    before = os.umask(0)
    try:
        c.write_secret(path, c.key_pem(key))
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert c.key_fingerprint(c.read_key(path)) == c.key_fingerprint(key)
    with pytest.raises(ConfigError, match="exists already"):
        c.write_secret(path, b"other")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="exists already"):
        c.write_secret(tmp_path / "link", b"other")
    assert not (tmp_path / "elsewhere").exists()
    with pytest.raises(ConfigError, match="cannot write"):
        c.write_secret(tmp_path / "none" / "key.pem", b"other")
    assert c.read_key(path)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
def test_a_key_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key.pem"
    c.write_secret(path, c.key_pem(c.new_key()))
    path.chmod(mode)
    with pytest.raises(ConfigError, match=f"{mode:04o}.*chmod 600"):
        c.read_key(path)
    path.chmod(0o400)
    assert c.read_key(path)


def test_unusable_key_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the key"):
        c.read_key(tmp_path / "none.pem")
    plain = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    other = {
        "junk": b"-----BEGIN PRIVATE KEY-----\nnonsense",
        "curve": ec.generate_private_key(ec.SECP384R1()).private_bytes(*plain),
        "kind": ed25519.Ed25519PrivateKey.generate().private_bytes(*plain),
    }
    for name, data in other.items():
        c.write_secret(tmp_path / name, data)
        with pytest.raises(ConfigError, match="pass the file that verfedgnn wrote") as caught:
            c.read_key(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_a_certificate_has_the_name_the_key_and_nothing_it_asked_for(authority: Authority) -> None:
    key = c.new_key()
    pem = c.issue(*authority, forged(["film"], key))
    certificate = c.Certificate(pem).x509
    extensions = certificate.extensions
    assert c.Certificate(pem).name == "film"
    assert c.key_fingerprint(key) == c.Certificate(pem).key_fingerprint
    assert c.key_fingerprint(c.new_key()) != c.Certificate(pem).key_fingerprint
    assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["film"]
    assert list(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [
        ExtendedKeyUsageOID.CLIENT_AUTH
    ]
    assert certificate.not_valid_after_utc < datetime.now(UTC) + timedelta(days=826)
    assert c.Certificate(pem).issued_by(c.Certificate(authority[1]))
    assert not c.Certificate(pem).issued_by(c.Certificate(c.new_authority("trial")[1]))


def test_no_certificate_outlives_its_authority() -> None:
    key, pem = c.new_authority("brief", days=3)
    issued = c.Certificate(c.issue(key, pem, c.make_request(c.new_key(), "film")))
    assert issued.end == c.Certificate(pem).end
    key, pem = c.new_authority("gone", days=0)
    with pytest.raises(ConfigError, match="the authority expired on 20"):
        c.issue(key, pem, c.make_request(c.new_key(), "film"))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["../film"], "cannot be a name"),
        (["film\nbook"], "cannot be a name"),
        (["film\n"], "cannot be a name"),
        (["-film"], "cannot be a name"),
        (["f" * 64], "cannot be a name"),
        (["fìlm"], "cannot be a name"),
        (["[red]film"], "cannot be a name"),
        (["\x1b[2Jfilm"], "cannot be a name"),
        (["unset"], "cannot be a name"),
        ([], "0 names"),
        (["film", "book"], "2 names"),
        (["server"], "reserved for the coordinator"),
        (["SERVER"], "reserved for the coordinator"),
    ],
)
def test_forged_names_are_refused(authority: Authority, names: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        c.issue(*authority, forged(names))
    assert str(caught.value).isprintable()


def test_unusable_requests(authority: Authority) -> None:
    key = c.new_key()
    csr = x509.load_pem_x509_csr(c.make_request(key, "film").encode())
    other = x509.load_pem_x509_csr(c.make_request(c.new_key(), "book").encode())
    body, stolen = csr.public_bytes(Encoding.DER), bytearray(other.public_bytes(Encoding.DER))
    place = stolen.find(other.public_key().public_bytes(Encoding.X962, c.PublicFormat.UncompressedPoint))
    stolen[place : place + 65] = csr.public_key().public_bytes(
        Encoding.X962, c.PublicFormat.UncompressedPoint
    )
    with pytest.raises(ConfigError, match="not signed with the key"):
        c.issue(*authority, x509.load_der_x509_csr(bytes(stolen)).public_bytes(Encoding.PEM).decode())
    with pytest.raises(ConfigError, match="join-request"):
        c.issue(*authority, body.decode("latin-1"))
    with pytest.raises(ConfigError, match="must never leave its machine"):
        c.issue(*authority, c.key_pem(key).decode())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "film")])
    odd = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(subject)
        .sign(ed25519.Ed25519PrivateKey.generate(), None)
    )
    with pytest.raises(ConfigError, match="not for an ECDSA P-256 key"):
        c.issue(*authority, odd.public_bytes(Encoding.PEM).decode())
    with pytest.raises(ConfigError, match="not for 'film'"):
        c.issue(*authority, c.make_request(key, "film"), server=True)
    with pytest.raises(ConfigError, match="does not belong to its certificate"):
        c.issue(key, authority[1], c.make_request(key, "film"))
    with pytest.raises(ConfigError, match="cannot be a name"):
        c.make_request(key, "a b")
    with pytest.raises(ConfigError, match="single one"):
        c.Certificate(authority[1] + authority[1])


def test_signatures(authority: Authority) -> None:
    key = c.new_key()
    pem = c.issue(*authority, c.make_request(key, "film"))
    signature = c.sign(key, b"ready")
    assert c.Certificate(pem).verify(signature, b"ready")
    assert not c.Certificate(pem).verify(signature, b"Ready")
    assert not c.Certificate(pem).verify(b"", b"ready")
    assert not c.Certificate(pem).verify(c.sign(c.new_key(), b"ready"), b"ready")


def test_fingerprints_to_read_out_by_phone(authority: Authority) -> None:
    digits = c.Certificate(authority[1]).fingerprint
    assert len(digits) == 64
    assert digits == c.Certificate(authority[1]).x509.fingerprint(SHA256()).hex()
    assert c.short_fingerprint("0123456789abcdef" * 4) == "0123 4567 89ab cdef 0123 4567 89ab cdef"


def context(side: int, trust: str, key: Path, certificate: str) -> ssl.SSLContext:
    """Return a context that trusts one authority and checks as strictly as Python 3.13 does by default."""
    made = ssl.SSLContext(side)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.verify_mode = ssl.CERT_REQUIRED
    made.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    made.load_verify_locations(cadata=trust)
    file = key.with_name("certificate.pem")
    file.write_text(certificate)
    made.load_cert_chain(file, key)
    return made


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[str, str]:
    """Connect, send a byte each way, and return the fingerprints that server and client see."""
    left, right = socket.socketpair()
    left.settimeout(180)
    right.settimeout(180)
    seen: dict[str, str] = {}
    errors: list[OSError] = []

    def talk(side: str, tls: ssl.SSLSocket) -> None:
        tls.sendall(b"x")
        if (tls.version(), tls.recv(1)) != ("TLSv1.3", b"x"):
            raise ConnectionError
        seen[side] = c.Certificate(
            ssl.DER_cert_to_PEM_cert(tls.getpeercert(binary_form=True) or b"")
        ).fingerprint

    def serve() -> None:
        try:
            with left, server.wrap_socket(left, server_side=True) as tls:
                talk("server", tls)
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with right, client.wrap_socket(right, server_hostname=c.COORDINATOR) as tls:
            talk("client", tls)
    except OSError as error:
        errors.append(error)
    thread.join()
    if (
        errors
    ):  # a client that is refused may learn only that the line is cut; the side that refused knows why
        raise next((error for error in errors if isinstance(error, ssl.SSLCertVerificationError)), errors[0])
    return seen["server"], seen["client"]


def test_mutual_tls(tmp_path: Path, authority: Authority) -> None:
    trust, other = authority[1], c.new_authority("trial")
    keys = {"server": tmp_path / "server.key", "film_1-A": tmp_path / "film.key"}
    for path in keys.values():
        c.write_secret(path, c.key_pem(c.new_key()))

    def certificate(name: str, by: Authority = authority, **options: int) -> str:
        return c.issue(*by, c.make_request(c.read_key(keys[name]), name), server=name == "server", **options)

    def server(pem: str, name: str = "server") -> ssl.SSLContext:
        return context(ssl.PROTOCOL_TLS_SERVER, trust, keys[name], pem)

    def party(pem: str, name: str = "film_1-A") -> ssl.SSLContext:
        return context(ssl.PROTOCOL_TLS_CLIENT, trust, keys[name], pem)

    own, film = certificate("server"), certificate("film_1-A")
    assert handshake(server(own), party(film)) == (
        c.Certificate(film).fingerprint,
        c.Certificate(own).fingerprint,
    )
    refused = ssl.SSLCertVerificationError
    with pytest.raises(refused, match="unable to get local issuer"):
        handshake(server(own), party(certificate("film_1-A", other)))
    with pytest.raises(refused, match="unable to get local issuer"):
        handshake(server(certificate("server", other)), party(film))
    with pytest.raises(refused, match="expired"):
        handshake(server(own), party(certificate("film_1-A", days=0)))
    # a party's certificate is none for a coordinator, nor the other way round
    with pytest.raises(refused, match="purpose"):
        handshake(server(film, "film_1-A"), party(film))
    with pytest.raises(refused, match="purpose"):
        handshake(server(own), party(own, "server"))
