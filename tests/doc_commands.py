"""The commands that pages show: found, taken apart, and read by the command line itself without being run."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer.main

from verfedgnn.cli.main import app as declared
from verfedgnn.config import presets
from verfedgnn.config.tree import setting_path
from verfedgnn.core.errors import ConfigError

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    ["README.md", "CONTRIBUTING.md", *(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]
)

APP: Any = typer.main.get_command(declared)

_BLOCK = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
_HERE = re.compile(r"<<'(\w+)'")
_ENDS = re.compile(r"^(&&|\|\||\||;|>|>>|&)$")


@dataclass(frozen=True)
class Command:
    """One command of a block, as the page has it: several lines where they belong together."""

    page: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}: {self.text.splitlines()[0]}"

    @property
    def words(self) -> list[str]:
        """As a shell would take it apart, without comments and what follows `<<`."""
        lexer = shlex.shlex(
            _HERE.split(self.text)[0].replace("\\\n", " "), posix=True, punctuation_chars=";<>|&"
        )
        lexer.whitespace_split, lexer.commenters = True, "#"
        return list(lexer)

    @property
    def plain(self) -> bool:
        """Whether it is `verfedgnn` and its arguments, and nothing that needs a shell."""
        return self.words[0].endswith("verfedgnn") and not any(
            _ENDS.match(word) or "$" in word for word in self.words
        )

    def calls(self) -> Iterator[list[str]]:
        """The arguments of every `verfedgnn` in it: at the beginning of a part, or behind sudo, docker and the like."""
        parts: list[list[str]] = [[]]
        for word in self.words:
            if _ENDS.match(word) or word in ("do", "done"):
                parts.append([])
            else:
                parts[-1].append(word)
        for part in parts:
            named = [
                i for i, word in enumerate(part) if word.rsplit("/", 1)[-1] == "verfedgnn" and part[i + 1 :]
            ]
            if named and named[0] == 0:
                yield part[1:]
            elif named and part[named[-1] + 1] in APP.commands:
                yield part[named[-1] + 1 :]


def blocks(page: str) -> list[list[Command]]:
    """The commands of every block of a page."""
    return [
        [Command(page, text) for text in _split(block)]
        for block in _BLOCK.findall((ROOT / page).read_text("utf-8"))
    ]


def _split(block: str) -> Iterator[str]:
    lines = iter(block.splitlines())
    for line in lines:
        text = line
        while text.endswith("\\"):
            text += "\n" + next(lines)
        end = _HERE.search(text)
        while end is not None and text.splitlines()[-1] != end[1]:
            text += "\n" + next(lines)
        if text.strip() and not text.lstrip().startswith("#"):
            yield text


def mentioned(page: str) -> Iterator[Command]:
    """Commands within sentences and tables, `verfedgnn ...`; what is in square brackets may be left out, and is not here."""
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    for found in re.findall(r"`(verfedgnn [^`]+)`", text):
        command = " ".join(re.sub(r"[\[\]]", "", found).split())
        if not command.startswith("verfedgnn COMMAND"):
            yield Command(page, command)


def read(arguments: list[str]) -> None:
    """Have the command line read arguments, as far as names of commands, options, settings and presets go; nothing is run."""
    command = APP
    context = typer.Context(command, info_name="verfedgnn")
    while True:
        options, rest, _ = command.make_parser(context).parse_args(list(arguments))
        for setting in options.get("set_") or []:
            setting_path(setting.split("=")[0])
        if options.get("preset") not in (None, *presets()):
            raise ConfigError(f"there is no preset '{options['preset']}'")
        if not hasattr(command, "resolve_command") or not rest:
            return
        _, command, arguments = command.resolve_command(context, rest)
        context = typer.Context(command, info_name=command.name, parent=context)


def wrong(command: Command) -> str | None:
    """What is wrong with a command that is not run, or nothing."""
    try:
        for arguments in command.calls():
            read(arguments)
    except (typer.TyperException, ConfigError) as error:
        return str(getattr(error, "message", error))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    for named in re.findall(r"(?:verfedgnn|\.)\[([\w,]+)\]", command.text):
        if unknown := set(named.split(",")) - set(extras):
            return f"there is no extra {', '.join(unknown)}"
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    if command.words[0] == "make" and command.words[1] not in targets:
        return f"there is no target {command.words[1]}"
    return None
