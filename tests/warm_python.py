"""A Python that starts with the package loaded: importing it takes longer than most of what tests do in processes.

`warm_python()` returns an executable that replaces `sys.executable` for modules and code (`python -m verfedgnn ...`) and in
processes that `multiprocessing` spawns. It asks a server, which has loaded the package, to fork a process with its arguments, folder,
environment and open files. It forwards signals to that process, all but SIGSTOP, and exits as that process exits. If it is
killed, the server kills the process, and no process outlives the server.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import io
import json
import os
import runpy
import selectors
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

LOADED = (
    "fastapi",
    "pandas",
    "pyarrow.dataset",
    "scipy.optimize",
    "verfedgnn.federation.websocket_transport",
    "uvicorn",
    "verfedgnn.cli.main",
    "verfedgnn.evaluation.lift",
    "verfedgnn.federation.coordinator_service",
    "verfedgnn.federation.party_service",
    "verfedgnn_research.experiments.training_queue",
    "verfedgnn.serving.catalogue",
    "verfedgnn.training.train",
)
"""Modules to load, if they are installed. They start no threads and read no environment variables."""
MOST_FILES = 64
PR_SET_PDEATHSIG = 1
FIRST_SPARE_FILE = 256

CLIENT = """#!{python} -IS
import array, json, os, signal, socket, sys

way = next((word for word in sys.argv[1:] if word in ("-m", "-c") or not word.startswith("-")), "")
if way not in ("-m", "-c"):
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
answers = server.makefile()
found = {{int(name) for name in os.listdir("/proc/self/fd")}} - {{server.fileno()}}
files = [file for file in sorted(found) if os.path.exists(f"/proc/self/fd/{{file}}")]
numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ignored = [number for number in numbers if signal.getsignal(number) is signal.SIG_IGN]
request = {{
    "program": sys.argv[0],
    "arguments": sys.argv[1:],
    "folder": os.getcwd(),
    "environment": dict(os.environ),
    "files": files,
    "group": os.getpgrp(),
    "ignored": ignored,
}}
sent = array.array("i", files)
server.sendmsg([json.dumps(request).encode() + b"\\n"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, sent)])
child = int(answers.readline())
for number in numbers:
    if number not in ignored:
        signal.signal(number, lambda number, _: os.kill(child, number))
status = int(answers.readline() or 256)
if os.WIFSIGNALED(status):
    signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
    os.kill(os.getpid(), os.WTERMSIG(status))
os._exit(os.WEXITSTATUS(status))
"""


@functools.cache
def warm_python() -> str:
    """Return the executable, and start its server on the first call; without Linux's pidfd, return `sys.executable`."""
    if not hasattr(os, "pidfd_open"):
        return sys.executable
    folder = tempfile.TemporaryDirectory(prefix="warm-")
    address = str(Path(folder.name) / "server")
    program = Path(folder.name) / "python"
    program.write_text(CLIENT.format(python=sys.executable, address=address))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    server = subprocess.Popen(
        [sys.executable, __file__, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )

    @atexit.register
    def stop() -> None:
        server.kill()
        server.communicate()
        folder.cleanup()

    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    return str(program)


class Server:
    """Forks a process for every connection, and reports its pid and exit status there."""

    def __init__(self, address: str) -> None:
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(address)
        self.listener.listen()
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listener, selectors.EVENT_READ, self._fork)
        self.selector.register(sys.stdin.fileno(), selectors.EVENT_READ, lambda: sys.exit())
        self.request: dict[str, Any] | None = None
        self.received: list[int] = []

    def serve(self) -> None:
        """Answer requests; return in the forked process, with its request."""
        while self.request is None:
            for key, _ in self.selector.select():
                key.data()
                if self.request is not None:
                    return

    def _fork(self) -> None:
        link, _ = self.listener.accept()
        data, files, _, _ = socket.recv_fds(link, 1 << 16, MOST_FILES)
        while data and not data.endswith(b"\n"):
            data += link.recv(1 << 16)
        if not data:
            link.close()
            return
        child = os.fork()
        if child == 0:
            self._close()
            link.close()
            self.request = json.loads(data)
            self.received = list(files)
            return
        for file in files:
            os.close(file)
        ended = os.pidfd_open(child)
        link.sendall(b"%d\n" % child)
        self.selector.register(ended, selectors.EVENT_READ, lambda: self._report(child, ended, link))
        self.selector.register(link, selectors.EVENT_READ, lambda: self._abandon(child, link))

    def _report(self, child: int, ended: int, link: socket.socket) -> None:
        """Send the exit status of a process that ended."""
        self.selector.unregister(ended)
        os.close(ended)
        _, status = os.waitpid(child, 0)
        with contextlib.suppress(OSError):
            link.sendall(b"%d\n" % status)
        with contextlib.suppress(KeyError):
            self.selector.unregister(link)
        link.close()

    def _abandon(self, child: int, link: socket.socket) -> None:
        """Kill a process whose executable was killed."""
        self.selector.unregister(link)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)

    def _close(self) -> None:
        """Close everything that belongs to the server, in the forked process."""
        for key in list(self.selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
            elif key.fd > 2:
                os.close(key.fd)
        self.selector.close()


def leave(endings: list[Any]) -> None:
    """Exit with a known exit code as soon as threads and other exit handlers are done: tearing down the modules takes long."""
    if endings and isinstance(endings[0], int):
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(endings[0] & 0xFF)


def become(request: dict[str, Any], received: list[int], endings: list[Any]) -> None:
    """Take over files, folder, environment and signals from the executable, and run what its arguments say."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # end with the server
    spare = [fcntl.fcntl(file, fcntl.F_DUPFD, FIRST_SPARE_FILE) for file in received]
    for file in received:
        os.close(file)
    for file, number in zip(spare, request["files"], strict=True):
        os.dup2(file, number)
        os.close(file)
    options: list[str] = []
    arguments: list[str] = request["arguments"]
    while arguments[0].startswith("-") and arguments[0] not in ("-m", "-c"):
        options.append(arguments.pop(0))
    unbuffered = "-u" in options
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = _writer(1, "strict", lines=os.isatty(1), unbuffered=unbuffered)
    sys.stderr = _writer(2, "backslashreplace", lines=True, unbuffered=unbuffered)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]
    with contextlib.suppress(PermissionError):
        os.setpgid(0, request["group"])
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if number in request["ignored"] else usual)
    use_warm_python(request["program"])
    code: Any = None
    try:
        _run(*arguments)
        code = 0
    except SystemExit as stop:
        code = stop.code or 0
        raise
    finally:
        endings.append(code)


def _run(first: str, *rest: str) -> None:
    """Run a module or code, as Python does with these arguments."""
    if first == "-m":
        sys.argv = list(rest)
        sys.path[0] = os.getcwd()
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = ["-c", *rest[1:]]
        sys.path[0] = ""
        exec(rest[0], sys.modules["__main__"].__dict__)


def use_warm_python(program: str) -> None:
    """Let this process start Python as `program`."""
    sys.executable = program
    importlib.import_module("multiprocessing.spawn").set_executable(program)


def _writer(file: int, errors: str, *, lines: bool, unbuffered: bool) -> io.TextIOWrapper:
    raw = open(file, "wb", buffering=0 if unbuffered else -1, closefd=False)  # noqa: SIM115
    return io.TextIOWrapper(
        raw, encoding="utf-8", errors=errors, line_buffering=lines, write_through=unbuffered
    )


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    endings: list[Any] = []
    atexit.register(leave, endings)  # registered first, called last
    for name in LOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    server = Server(sys.argv[1])
    print("ready", flush=True)
    server.serve()
    assert server.request is not None
    become(server.request, server.received, endings)
