"""GNNs and methods of one's own, by name: registered in Python, in a file, or offered by an installed package.

    @verfedgnn.register                    a subclass of gnn.operator.Operator or of baselines.method.Method
    verfedgnn --plugin FILE.py COMMAND     the command, once the file has registered what it has
    [project.entry-points."verfedgnn.gnns"]  name = "module" (or "module:Class"); the same for "verfedgnn.methods"

A name in a configuration, a run folder or a federation file only chooses among what is installed here; no code ever comes with
it. Built-in names cannot be taken. Nothing is searched for, nor imported, before a name is asked for that is not built in.
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
from pathlib import Path
from typing import Any, TypeVar

from verfedgnn.core.errors import ConfigError
from verfedgnn.plugins import origin
from verfedgnn.plugins.contract import GnnPlugin, MethodPlugin

GNNS = ("gcn", "gat", "ggnn")
"""Names of the built-in GNNs."""
METHOD_NAMES = (
    "bias",
    "mf",
    "biased-mf",
    "central",
    "alone",
    "fedpergnn",
    "fedsage",
    "fedsage+",
    "verfedgnn",
    "best",
    "private",
)
"""Names of the built-in methods; `research.baselines` has the methods themselves."""
FILES = "VERFEDGNN_PLUGINS"
"""Environment variable with plug-in files, as in PATH; so that processes a command starts have them, too."""
REMEDY = "a plug-in's is found once its package is installed, or by `verfedgnn --plugin FILE.py ...`"

_gnns: dict[str, dict[str, type[GnnPlugin]]] = {}
"""Registered operators by name and form."""
_methods: dict[str, MethodPlugin] = {}
_codes: dict[type, str | None] = {}
"""Which code each registered class is, as it was when it was registered: its file may change while it is in use."""

Plugin = TypeVar("Plugin", bound=type[Any])


def register(plugin: Plugin) -> Plugin:
    """Make a GNN (an `Operator`) or a method (a `Method`) known under its `name`; a class decorator.

    The same class may be registered again, as a notebook does when a cell is run again; another one of that name is refused.
    """
    if not (isinstance(plugin, type) and issubclass(plugin, GnnPlugin | MethodPlugin)) or inspect.isabstract(
        plugin
    ):
        raise ConfigError(f"register takes a finished subclass of Operator or Method, and {plugin!r} is none")
    name = getattr(plugin, "name", "")
    if not re.fullmatch(r"[a-z0-9][a-z0-9+._-]*", name):
        raise ConfigError(
            f"{plugin.__name__} needs a name of small letters, digits and +._-, such as 'sage'; it has {name!r}"
        )
    if issubclass(plugin, GnnPlugin):
        forms = _gnns.setdefault(name, {})
        _refuse_taken(name, plugin, "a GNN", GNNS, forms.get(plugin.form))
        forms[plugin.form] = plugin
    else:
        _refuse_taken(
            name, plugin, "a method", METHOD_NAMES, type(_methods[name]) if name in _methods else None
        )
        _methods[name] = plugin()
    _codes[plugin] = origin.identify(plugin)
    return plugin


def _refuse_taken(name: str, plugin: type, what: str, built_in: Any, before: type | None) -> None:
    if name in built_in:
        raise ConfigError(f"'{name}' is built in; give {plugin.__name__} another name")
    if before is not None and (origin.find_source(before), before.__qualname__) != (
        origin.find_source(plugin),
        plugin.__qualname__,
    ):
        raise ConfigError(
            f"there is {what} '{name}' already, in {before.__module__}; give one of them another name"
        )


# -- by name ---------------------------------------------------------------------------------------------------------------


def list_gnns() -> list[str]:
    """Every GNN there is here, built-in ones first."""
    _load_files()
    return [*GNNS, *sorted({*_gnns, *_offered("verfedgnn.gnns")} - set(GNNS))]


def check_gnn(name: str, code: str | None = None) -> str:
    """`name`, if there is a GNN of that name here; `code` is what is known of the one that is looked for."""
    if name in GNNS or name in _gnns or name in list_gnns():
        return name
    wanted = f"; what is needed is {origin.format_code(code)}" if code else ""
    raise ConfigError(
        f"there is no GNN '{name[:40]}' here; there are: {', '.join(list_gnns())}; {REMEDY}{wanted}"
    )


def load_gnn(name: str, form: str) -> type[GnnPlugin]:
    """The operator of a plug-in for one form of the model; factors call none, so any of its operators will do."""
    check_gnn(name)
    if name not in _gnns:
        _load(name, "verfedgnn.gnns", _gnns)
    found = _gnns[name]
    if form == "factors":
        return next(iter(found.values()))
    if form not in found:
        raise ConfigError(
            f"GNN '{name}' comes with model.form = {' and '.join(found)}, not {form}; "
            f"start from preset {'paper' if form == 'messages' else 'best'}, or register an operator with form = '{form}'"
        )
    return found[form]


def load_methods() -> dict[str, MethodPlugin]:
    """Every method that is not built in, by name."""
    _load_files()
    for name in _offered("verfedgnn.methods"):
        if name not in _methods:
            _load(name, "verfedgnn.methods", _methods)
    return dict(sorted(_methods.items()))


def identify_gnn(name: str, form: str) -> str | None:
    """Which code a plug-in's GNN is here (see `origin`); None for built-in ones, and for those that are in no file."""
    return None if name in GNNS else _codes[load_gnn(name, form)]


def hash_code(plugin: type) -> str:
    """A hash of a registered plug-in's code, for records that must not outlive a change of it; "" where it is in no file."""
    found = _codes[plugin]
    return "" if found is None else origin.extract_digest(found)[:16]


# -- where they come from --------------------------------------------------------------------------------------------------


def load_file(path: str | Path) -> None:
    """Run a Python file that registers plug-ins, here and in processes that are started from here."""
    file = Path(path).resolve()
    _run(file)
    os.environ[FILES] = os.pathsep.join(dict.fromkeys([*list_files(), str(file)]))


def list_files() -> list[str]:
    """The files that plug-ins come from."""
    return [path for path in os.environ.get(FILES, "").split(os.pathsep) if path]


def _load_files() -> None:
    for path in list_files():
        _run(Path(path))


@cache
def _run(file: Path) -> None:
    place = hashlib.sha256(str(file).encode()).hexdigest()[
        :8
    ]  # files of one name in two folders are two modules
    spec = importlib.util.spec_from_file_location(f"verfedgnn_plugin_{file.stem}_{place}", file)
    if not file.is_file() or spec is None or spec.loader is None:
        raise ConfigError(
            f"the plug-in {file} is no Python file; give the file in which @verfedgnn.register stands"
        )
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    with _blamed(str(file)):
        spec.loader.exec_module(module)


@cache
def _offered(group: str) -> dict[str, EntryPoint]:
    """What installed packages offer, by name; reads their metadata and imports nothing."""
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=group):
        other = found.setdefault(entry.name, entry)
        if other.value != entry.value:
            raise ConfigError(
                f"two installed packages offer '{entry.name}': {other.value} and {entry.value}; uninstall one"
            )
    return found


def _load(name: str, group: str, registered: dict[str, Any]) -> None:
    entry = _offered(group)[name]
    with _blamed(entry.value):
        loaded = entry.load()
        if isinstance(loaded, type):
            register(loaded)
    if name not in registered:
        raise ConfigError(
            f"the plug-in {entry.value} is offered as '{name}' and registers no such name; mend or uninstall it"
        )


@contextmanager
def _blamed(plugin: str) -> Iterator[None]:
    """Whatever goes wrong in a plug-in's own code is told as one line that names it."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"the plug-in {plugin} cannot be loaded ({type(error).__name__}: {error}); mend it"
        ) from error
