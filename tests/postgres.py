"""A PostgreSQL server of the tests' own: in a temporary folder, on a Unix socket, under an unprivileged user."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adbc_driver_postgresql import dbapi

PASSWORD = "ge/heim@42%"
"""Of the role `reader`, with characters that a URL reserves."""


@dataclass(frozen=True)
class Server:
    folder: Path

    @property
    def owner(self) -> str:
        """The address of the role that may do everything, without a password."""
        return f"postgresql://owner@/postgres?host={self.folder}"

    def reader(self, password: str | None) -> str:
        """The address of the role that must give a password, with this one in it as it is written."""
        return f"postgresql://reader{'' if password is None else ':' + password}@/postgres?host={self.folder}"

    def run(self, *statements: str) -> list[Any]:
        """Statements of the owner; the rows of the last."""
        with dbapi.connect(self.owner, autocommit=True) as server, server.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall()) if statements[-1].startswith("select") else []


def missing() -> str | None:
    """Why there is no server here, or None."""
    if _binary("initdb") is None or _binary("pg_ctl") is None:
        return "no PostgreSQL server here (initdb, pg_ctl)"
    return (
        None
        if _unprivileged() is not None
        else "PostgreSQL refuses to run as root, and there is no user postgres or nobody"
    )


@contextmanager
def running_server() -> Iterator[Server]:
    """A server with the roles owner and reader, gone at the end."""
    user = _unprivileged()
    folder = Path(tempfile.mkdtemp(prefix="verfedgnn-pg-"))
    try:
        if user:
            shutil.chown(folder, user)
        data = folder / "data"
        _run(
            user,
            folder,
            _binary("initdb"),
            "-D",
            data,
            "-U",
            "owner",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale=C",
            "--no-sync",
        )
        (data / "pg_hba.conf").write_text("local all owner trust\nlocal all all scram-sha-256\n")
        options = f"-c listen_addresses='' -c unix_socket_directories='{folder}' -c fsync=off"
        _run(user, folder, _binary("pg_ctl"), "-D", data, "-w", "-o", options, "-l", folder / "log", "start")
        try:
            server = Server(folder)
            server.run(f"create role reader login password '{PASSWORD}'")
            server.run("grant pg_read_all_data to reader")
            yield server
        finally:
            _run(user, folder, _binary("pg_ctl"), "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _binary(name: str) -> str | None:
    beside = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return shutil.which(name) or (str(beside[-1]) if beside else None)


def _unprivileged() -> str | None:
    """Whom to become, "" for oneself, None if there is nobody."""
    if os.geteuid() != 0:
        return ""
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in ("postgres", "nobody") if name in names), None)


def _run(user: str | None, folder: Path, *words: object) -> None:
    become: dict[str, Any] = (
        {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []} if user else {}
    )
    with (folder / "out").open("ab") as out:  # not a pipe, which the server would inherit and hold open
        subprocess.run(
            [str(word) for word in words],
            check=True,
            cwd=folder,
            stdout=out,
            stderr=out,
            timeout=180,
            **become,
        )
