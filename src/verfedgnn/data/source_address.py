"""Addresses of databases (`postgresql://...`): what of them may be shown, and what would give a password away."""

import re
from pathlib import Path
from urllib.parse import unquote

from verfedgnn.core.errors import DataError

_SCHEME = re.compile(r"postgres(ql)?://", re.IGNORECASE)
_PARTS = re.compile(
    r"postgres(?:ql)?://(?:(?P<user>[^:@/?#]*)(?::(?P<password>[^@/?#]*))?@)?"
    r"(?P<hosts>(?:\[[0-9a-f:.]*\]|[^@/?#:,\[\]]*)(?::\d*)?(?:,[^@/?#:,]*(?::\d*)?)*)"
    r"(?:/(?P<database>[^@/?#]*))?(?:\?(?P<settings>[^#]*))?",
    re.IGNORECASE,
)


def is_address(source: str | Path) -> bool:
    """Whether a source of ratings is a PostgreSQL database."""
    return isinstance(source, str) and _SCHEME.match(source) is not None


def redact(source: str | Path) -> str:
    """A source as it may stand in errors, logs and files: a path as it is, an address without password and settings.

    Whatever stands before the last @ may be part of a password with a character that a URL reserves, so only a user before it
    is kept; and where that @ follows a ?, what comes after it may be the end of a password that is a setting.
    """
    text = str(source)
    about = re.match(r"((?:[^=/]*=)?\w+:/+)(.*)$", text, re.DOTALL)
    if about is None:
        return re.sub(r"(password\s*=\s*)('[^']*'|\S+)", r"\1***", text, flags=re.IGNORECASE)
    scheme, (rest, _, settings) = about[1], about[2].partition("?")
    if "@" in settings:
        start, colon, _ = rest.partition(":")
        return scheme + start + (":***" if colon else "")
    credentials, at, place = rest.rpartition("@")
    user, colon, _ = credentials.partition(":")
    return scheme + user + (":***" if colon else "") + at + place


def address_name(address: str) -> str:
    """The database's name, for a table that has no other."""
    parts = _PARTS.fullmatch(address)
    return (parts and unquote(parts["database"] or "")) or "postgresql"


def check_address(address: str) -> list[str]:
    """Passwords in an address, as written and as meant, to keep out of errors; an address libpq would misread is an error.

    libpq quotes what it could not make out, which may be half a password.
    """
    parts = _PARTS.fullmatch(address)
    if parts is None or re.search(r"%(?![0-9a-fA-F]{2})", address):
        raise DataError(
            f"{redact(address)} cannot be read as postgresql://user@host:port/database: write special characters as % and two"
            " digits (@ is %40, / is %2F), or leave the password out and set PGPASSWORD or ~/.pgpass"
        )
    secrets = [parts["password"] or ""]
    secrets += [
        value
        for key, _, value in (s.partition("=") for s in (parts["settings"] or "").split("&"))
        if "password" in key
    ]
    return [text for secret in secrets if secret for text in (secret, unquote(secret))]


def remove_secrets(secrets: list[str], text: str) -> str:
    """The text with every secret replaced."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return text
