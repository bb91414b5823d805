"""GNNs and methods that are not built in, found by name: from Python code, a file, or an installed package.

    @verfedgnn.register                    registers a subclass of verfedgnn's Operator or verfedgnn_research's Method
    verfedgnn --plugin FILE.py COMMAND     runs FILE.py, which registers its plug-ins, before the command
    [project.entry-points."verfedgnn.gnns"]  name = "module" (or "module:Class"); likewise "verfedgnn.methods"

A name in a configuration, a run folder or a federation file only selects among installed plug-ins; it never
brings code with it. Built-in names cannot be replaced. Plug-ins are searched for and imported only when a
name is not built in.

The identity of a plug-in's code is its origin, for people, and a SHA-256, which is compared:

    my_gnn.py sha256:3f2a...    a single file: the hash of the file, as `sha256sum my_gnn.py` prints it
    acme 1.0 sha256:9c41...     an installed package: the hash of "acme 1.0" and the source of the module

The modules that a plug-in imports are not hashed; the version of its package covers them.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from itertools import takewhile
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from verfedgnn.core.errors import ConfigError
from verfedgnn.core.option_names import make_printable

GNNS = ("gcn", "gat", "ggnn")
"""Names of the built-in GNNs."""
FILES = "VERFEDGNN_PLUGINS"
"""Environment variable with plug-in files, separated as in PATH. Child processes of a command inherit it."""
REMEDY = "for a plug-in, install its package, import its file, or run `verfedgnn --plugin FILE.py ...`"
"""What to do about an unknown name."""
PATTERN = r"^[^\x00-\x1f\x7f]{1,100} sha256:[0-9a-f]{64}$"
"""Regular expression that every result of `identify` matches."""

_GROUPS = {"GNN": "verfedgnn.gnns", "method": "verfedgnn.methods"}
"""Entry point group in which packages offer plug-ins, by kind."""


class Plugin:
    """What can be named: a GNN (verfedgnn's `Operator`) or a method to compare with (verfedgnn_research's `Method`)."""

    kind: ClassVar[str]
    built_in: ClassVar[tuple[str, ...]]
    """Names that no plug-in may take."""


_registered: dict[tuple[str, str], type[Any]] = {}
"""Classes by kind and name."""
_codes: dict[type, str | None] = {}
"""Identity of the code of each registered class at registration; its file may change later."""

Registered = TypeVar("Registered", bound=type[Any])


def register(plugin: Registered) -> Registered:
    """Register a GNN (an `Operator`) or a method (a `Method`) under its `name`; use it as a class decorator.

    The same class can be registered again, as when a notebook cell is rerun. A different class of that name is an error.
    """
    if not (isinstance(plugin, type) and issubclass(plugin, Plugin)) or inspect.isabstract(plugin):
        raise ConfigError(
            f"register takes a subclass of Operator or Method without abstract methods, not {plugin!r}"
        )
    name = getattr(plugin, "name", "")
    if not re.fullmatch(r"[a-z0-9][a-z0-9+._-]*", name):
        raise ConfigError(
            f"{plugin.__name__} has the name {name!r}; use lower-case letters, digits and +._-, for example 'sage'"
        )
    if name in plugin.built_in:
        raise ConfigError(f"'{name}' is built in; give {plugin.__name__} another name")
    before = _registered.setdefault((plugin.kind, name), plugin)
    if (_find_source(before), before.__qualname__) != (_find_source(plugin), plugin.__qualname__):
        what = f"a {plugin.kind} '{name}' is already registered by {before.__module__}"
        raise ConfigError(f"{what}; rename one of them")
    _registered[plugin.kind, name] = plugin
    _codes[plugin] = identify(plugin)
    return plugin


def list_plugins(kind: str) -> list[str]:
    """Return the names of all plug-ins of a kind: those that are registered, and those that packages offer."""
    for path in list_files():
        _run(Path(path))
    return sorted({name for known, name in _registered if known == kind} | _offered(kind).keys())


def list_gnns() -> list[str]:
    """Return the names of all available GNNs, built-in ones first."""
    return [*GNNS, *(name for name in list_plugins("GNN") if name not in GNNS)]


def check_gnn(name: str, code: str | None = None) -> str:
    """Return `name` if that GNN is available, else raise; `code` identifies the plug-in for the error message."""
    if name in GNNS or ("GNN", name) in _registered or name in list_gnns():
        return name
    wanted = f"; the required plug-in is {format_code(code)}" if code else ""
    raise ConfigError(f"unknown GNN '{name[:40]}'; available: {', '.join(list_gnns())}; {REMEDY}{wanted}")


def load_gnn(name: str, code: str | None = None) -> type[Any]:
    """Return the operator of a plug-in, as `check_gnn` does."""
    return _load("GNN", check_gnn(name, code))


def load_methods() -> dict[str, Any]:
    """Return all methods of plug-ins, by name."""
    return {name: _load("method", name)() for name in list_plugins("method")}


def identify_gnn(name: str) -> str | None:
    """Return the identity of a GNN's code; None for built-in GNNs and for classes without a file."""
    return None if name in GNNS else _codes[load_gnn(name)]


def hash_code(plugin: type) -> str:
    """Return a hash of a plug-in's code, by which stored records become stale when it changes; "" without a file."""
    return extract_digest(_codes[plugin] or "")[:16]


def load_file(path: str | Path) -> None:
    """Run a Python file that registers plug-ins, in this process and in its child processes."""
    file = Path(path).resolve()
    _run(file)
    os.environ[FILES] = os.pathsep.join(dict.fromkeys([*list_files(), str(file)]))


def list_files() -> list[str]:
    """Return the plug-in files that were loaded or named in the environment."""
    return [path for path in os.environ.get(FILES, "").split(os.pathsep) if path]


@cache
def _run(file: Path) -> None:
    # Files with the same name in two folders must become two modules.
    place = hashlib.sha256(str(file).encode()).hexdigest()[:8]
    spec = importlib.util.spec_from_file_location(f"verfedgnn_plugin_{file.stem}_{place}", file)
    if not file.is_file() or spec is None or spec.loader is None:
        raise ConfigError(
            f"the plug-in {file} is not a Python file; give the file that calls @verfedgnn.register"
        )
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    with _blamed(str(file)):
        spec.loader.exec_module(module)


@cache
def _offered(kind: str) -> dict[str, EntryPoint]:
    """Return the entry points of installed packages by name. Reads metadata and imports nothing."""
    offers: dict[str, EntryPoint] = {}
    for entry in entry_points(group=_GROUPS[kind]):
        other = offers.setdefault(entry.name, entry)
        if other.value != entry.value:
            raise ConfigError(
                f"two installed packages offer '{entry.name}': {other.value} and {entry.value}; uninstall one"
            )
    return offers


def _load(kind: str, name: str) -> type[Any]:
    if (kind, name) not in _registered:
        entry = _offered(kind)[name]
        with _blamed(entry.value):
            loaded = entry.load()
            if isinstance(loaded, type):
                register(loaded)
        if (kind, name) not in _registered:
            raise ConfigError(
                f"the plug-in {entry.value} is offered as '{name}' but does not register that name; fix or uninstall it"
            )
    return _registered[kind, name]


@contextmanager
def _blamed(plugin: str) -> Iterator[None]:
    """Turn any exception in a plug-in's code into a `ConfigError` that names the plug-in."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"the plug-in {plugin} cannot be loaded ({type(error).__name__}: {error}); fix its code"
        ) from error


def _find_source(plugin: type) -> str:
    """Return the file in which a class is defined, since it may be loaded under several names; its module's without a file."""
    return getattr(sys.modules.get(plugin.__module__), "__file__", None) or plugin.__module__


def identify(plugin: type) -> str | None:
    """Return the identity of a class's code as it is on disk now, or None if it has no file, as in a notebook."""
    file = Path(_find_source(plugin))
    if not file.is_file():
        return None
    source = file.read_bytes()
    package = _package(plugin)
    if package:
        source = f"{package}\n".encode() + source
    name = make_printable(package or file.name).replace("\n", "?")[:100]
    return f"{name} sha256:{hashlib.sha256(source).hexdigest()}"


def require_gnn(gnn: str) -> str:
    """Return the identity of a GNN's code, which the members of a federation compare; raise `ConfigError` if it has no file."""
    code = identify_gnn(gnn)
    if code is None:
        unknown = f"GNN '{gnn}' is not defined in a file, so members cannot compare its code"
        raise ConfigError(f"{unknown}; {REMEDY}")
    return code


def _package(plugin: type) -> str:
    """Return name and version of the installed package that offers the module of a class, or ""."""
    module = plugin.__module__.split(".")

    def closeness(entry: EntryPoint) -> int:
        # Different packages may share a namespace.
        same = takewhile(bool, map(str.__eq__, entry.module.split("."), module))
        return sum(same)

    entries = [entry for group in _GROUPS.values() for entry in entry_points(group=group) if entry.dist]
    entry = max(entries, key=closeness, default=None)
    return f"{entry.dist.name} {entry.dist.version}" if entry and entry.dist and closeness(entry) else ""


def extract_digest(code: str) -> str:
    """Return the hash in an identity, 64 hex digits."""
    return code[-64:]


def format_code(code: str) -> str:
    """Format an identity for people, with the first 16 digits of the hash."""
    return f"{code[: -len(' sha256:') - 64]} (SHA-256 {extract_digest(code)[:16]}...)"
