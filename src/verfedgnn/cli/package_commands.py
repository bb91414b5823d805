"""Commands that other installed packages add, found by entry points and imported when one is called or listed.

[project.entry-points."verfedgnn.commands"]
name = "module:function"    or a Typer app, for a group of commands
"""

from __future__ import annotations

from collections.abc import MutableMapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
import typer.main

from verfedgnn.cli.shared_options import CommandApp, Group
from verfedgnn.core.errors import ConfigError

GROUP = "verfedgnn.commands"
RESEARCH = "verfedgnn-research"
PACKAGES = {
    **dict.fromkeys(("attack", "audit", "bench", "compare", "paper", "tune"), RESEARCH),
    "flare": "verfedgnn-flare",
}
"""Packages of this repository by their commands, to say what to install."""


class CommandGroup(Group):
    """The commands of verfedgnn, and those of other packages."""

    own: MutableMapping[str, Any]
    """Commands that are known so far; those of packages are added when they are needed."""

    @property
    def commands(self) -> MutableMapping[str, Any]:
        """Return all commands, as help and completion list them."""
        for name, entry in sorted(_offered().items()):
            if name not in self.own:
                self.own[name] = _load(entry)
        return self.own

    @commands.setter
    def commands(self, commands: MutableMapping[str, Any]) -> None:
        self.own = commands

    def get_command(self, ctx: typer.Context, cmd_name: str) -> Any:  # type: ignore[override]
        """Return a command by name, or None if nobody offers it."""
        if cmd_name not in self.own and cmd_name in (offered := _offered()):
            self.own[cmd_name] = _load(offered[cmd_name])
        if cmd_name not in self.own and cmd_name in PACKAGES and not ctx.resilient_parsing:
            package = PACKAGES[cmd_name]
            raise ConfigError(
                f"verfedgnn {cmd_name} is in the package {package}, which is not installed; run in a checkout: pip install packages/{package}"
            )
        return self.own.get(cmd_name)


def _offered() -> dict[str, EntryPoint]:
    """Return the commands of installed packages. Reads metadata and imports nothing."""
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _load(entry: EntryPoint) -> Any:
    """Import a command and put it in the help panel of its package."""
    package = entry.dist.name if entry.dist is not None else entry.module.partition(".")[0]
    panel = f"Package {package}"
    try:
        loaded = entry.load()
    except ImportError as error:
        raise ConfigError(
            f"the command {entry.name} of the package {package} cannot be imported ({error}); reinstall {package}"
        ) from error
    if isinstance(loaded, typer.Typer):
        command: Any = typer.main.get_group(loaded)
    else:
        single = CommandApp(add_completion=False)
        single.command(entry.name)(loaded)
        command = typer.main.get_command(single)
    command.name, command.rich_help_panel = entry.name, panel
    return command
