"""Addresses of databases (`postgresql://...`), and how to keep their passwords out of messages."""

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
    """Return whether a source of ratings is a PostgreSQL address."""
    return isinstance(source, str) and _SCHEME.match(source) is not None


def redact(source: str | Path) -> str:
    """Return a source for errors, logs and files: a path unchanged, an address without password and settings.

    A password may contain unescaped characters such as @. Of the text before the last @, only the user name
    is kept. If that @ follows a ?, the text after it may be the end of a password among the settings, and is
    removed as well.
    """
    text = str(source)
    about = re.match(r"((?:[^=/]*=)?\w+:/+)(.*)$", text, re.DOTALL)
    if about is None:
        return re.sub(r"(password\s*=\s*)('[^']*'|\S+)", r"\1***", text, flags=re.IGNORECASE)
    scheme = about[1]
    rest, _, settings = about[2].partition("?")
    if "@" in settings:
        start, colon, _ = rest.partition(":")
        return scheme + start + (":***" if colon else "")
    credentials, at, place = rest.rpartition("@")
    user, colon, _ = credentials.partition(":")
    return scheme + user + (":***" if colon else "") + at + place


def address_name(address: str) -> str:
    """Return the name of an address's database, which names its table."""
    parts = _PARTS.fullmatch(address)
    return (parts and unquote(parts["database"] or "")) or "postgresql"


def check_address(address: str) -> list[str]:
    """Return the passwords in an address, escaped and unescaped, so that errors can leave them out.

    Raise `DataError` for an address that libpq would misread: its message could quote a part of the password.
    """
    parts = _PARTS.fullmatch(address)
    if parts is None or re.search(r"%(?![0-9a-fA-F]{2})", address):
        raise DataError(
            f"{redact(address)} is not a valid postgresql://user@host:port/database; escape special characters"
            " (@ as %40, / as %2F), or leave the password out and use PGPASSWORD or ~/.pgpass"
        )
    secrets = [parts["password"] or ""]
    secrets += [
        value
        for key, _, value in (s.partition("=") for s in (parts["settings"] or "").split("&"))
        if "password" in key
    ]
    return [text for secret in secrets if secret for text in (secret, unquote(secret))]


def remove_secrets(secrets: list[str], text: str) -> str:
    """Replace every secret in a text."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return text
