"""Check the prose of README, docs/ and the help texts: sentence length, line width, words that hide the meaning.

    python tools/check_prose.py [PAGE ...]

The rules are few, and each has a reason:

- A sentence has at most 30 words. Longer ones have to be read twice.
- Prose wraps at 100 characters, so that a diff shows the sentence that changed. Tables and code are exempt in docs/;
  in README every line counts.
- The words in `UNCLEAR` were used in place of a noun or a verb. The message says what to write instead.
- proselint finds repeated words, redundancies, archaisms and malapropisms.

`codespell` checks spelling beside this script. Text between `<!-- begin NAME -->` and `<!-- end NAME -->` is written by a
command and is not checked here.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
MAX_WORDS = 30
MAX_WIDTH = 100
RESULTS = ("federation", "lift")
"""Pages of results/ whose text is written by hand; scripts write the others."""
UNCLEAR = {
    r"told": "say who tells what to whom",
    r"stands?(?! (?:out|by)\b)": "use 'is', 'represents' or the verb that is meant",
    r"whatever": "name the thing",
    r"whoever": "name the role: a party, the coordinator, an attacker",
    r"of whom": "start a new sentence",
    r"such as it is": "drop it",
    r"makes? no sense here": "'unexpected ... in this state'",
    r"anew": "use 'again'",
    r"one's own": "say whose",
    r"one more time": "use 'again'",
    r"is about (?:some|all) users": "use 'covers'",
}
PROSELINT_OFF = (
    "annotations",
    "dates_times",
    "skunked_terms",
    "social_awareness",
    "spelling",
    "typography",
    "weasel_words",
)
"""proselint's groups that contradict British spelling, plain quotes or the field's terms, or that are a matter of taste."""


class Complaint(NamedTuple):
    """A place in a page and what is wrong there."""

    page: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.message}"


def pages() -> list[Path]:
    """Return the pages that are checked."""
    top = [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY", "CHANGELOG")]
    results = [ROOT / "results" / f"{name}.md" for name in RESULTS]
    return [*top, *sorted((ROOT / "docs").rglob("*.md")), *results]


def blank_out(text: str) -> str:
    """Replace code blocks, generated parts and comments by empty lines, so that line numbers stay."""

    def empty(match: re.Match[str]) -> str:
        return "\n" * match[0].count("\n")

    text = re.sub(r"<!-- begin (\S+) -->.*?<!-- end \1 -->", empty, text, flags=re.DOTALL)
    text = re.sub(r"^```.*?^```[^\n]*$", empty, text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->", empty, text, flags=re.DOTALL)
    return re.sub(r"^(?: {4}.*|:::.*)$", "", text, flags=re.MULTILINE)


def plain_words(text: str) -> str:
    """Remove Markdown's signs; code becomes one word, a link its text."""
    text = re.sub(r"`[^`]*`", "Code", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"<[^>]+>", "", text)
    return re.sub(r"[*_]{1,2}(?=\S)|(?<=\S)[*_]{1,2}", "", text)


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield paragraphs, list items, headings and table cells with the line on which they begin."""
    start = 0
    lines: list[str] = []
    for number, line in enumerate([*blank_out(text).split("\n"), ""], 1):
        is_table = line.startswith("|")
        begins = is_table or not line.strip() or re.match(r"\s*(?:[-*>]|\d+\.|#+) ", line)
        if begins and lines:
            yield start, " ".join(lines)
            lines = []
        if is_table:
            # a cell is often a list, whose parts a semicolon separates
            yield from ((number, part) for cell in line.strip("|").split("|") for part in cell.split("; "))
        elif line.strip():
            start = start if lines else number
            lines.append(re.sub(r"^\s*(?:[-*>]|\d+\.|#+) ", "", line).strip())
        if line.startswith("#"):
            yield start, " ".join(lines)
            lines = []


def sentences(paragraph: str) -> list[str]:
    """Split a paragraph into sentences."""
    shortened = re.sub(r"\b(e\.g|i\.e|eq|Sec|App|Def|et al|vs)\.", r"\1", plain_words(paragraph))
    return re.split(r"(?<=[.!?])[\"')]* +(?=[\"'(]?[A-Z0-9])", shortened)


def check_text(page: str, text: str) -> list[Complaint]:
    """Return what is wrong with a page."""
    found = []
    for line, paragraph in paragraphs(text):
        for sentence in sentences(paragraph):
            words = re.findall(r"\S*\w\S*", sentence)
            if len(words) > MAX_WORDS:
                begin = " ".join(words[:6])
                found.append(Complaint(page, line, f"{len(words)} words in the sentence '{begin} ...'"))
            for pattern, advice in UNCLEAR.items():
                for match in re.finditer(rf"\b{pattern}\b", sentence, re.IGNORECASE):
                    found.append(Complaint(page, line, f"'{match[0]}': {advice}"))
    shown = text if page == "README.md" else blank_out(text)
    for number, line_text in enumerate(shown.split("\n"), 1):
        is_free = page != "README.md" and line_text.startswith("|")
        if len(line_text) > MAX_WIDTH and not is_free:
            found.append(Complaint(page, number, f"{len(line_text)} characters in a line"))
    return found


def check_with_proselint(page: str, text: str) -> list[Complaint]:
    """Return what proselint finds in a page's prose."""
    from proselint.checks import __register__ as every_check
    from proselint.config import DEFAULT
    from proselint.registry import CheckRegistry
    from proselint.tools import LintFile

    if not CheckRegistry().checks:
        CheckRegistry().register_many(every_check)
    checks = {name: on and name not in PROSELINT_OFF for name, on in DEFAULT["checks"].items()}
    counter = itertools.count()
    numbered = re.sub(
        r"`[^`]*`", lambda _: f"Code{next(counter)}", blank_out(text)
    )  # no word is repeated by this
    prose = "\n".join(
        "" if line.startswith(("|", "#")) else plain_words(line) for line in numbered.split("\n")
    )
    results = LintFile(page, prose).lint({**DEFAULT, "checks": checks})
    return [Complaint(page, result.pos[0], result.check_result.message) for result in results]


def help_texts() -> Iterator[tuple[str, str]]:
    """Yield the help of every command and option."""
    import typer.main

    from verfedgnn.cli.main import app

    waiting = [("verfedgnn", typer.main.get_command(app))]
    while waiting:
        name, command = waiting.pop()
        yield f"{name} --help", command.help or ""
        for parameter in command.params:
            yield f"{name} {parameter.opts[0]}", getattr(parameter, "help", None) or ""
        waiting += [(f"{name} {key}", one) for key, one in getattr(command, "commands", {}).items()]


def main(named: list[str]) -> int:
    """Check the named pages, or all pages and help texts; print complaints and return the exit code."""
    complaints: list[Complaint] = []
    for path in [Path(name).resolve() for name in named] or pages():
        text = path.read_text("utf-8")
        page = path.relative_to(ROOT).as_posix()
        complaints += check_text(page, text) + check_with_proselint(page, text)
    for name, text in [] if named else help_texts():
        one_line = " ".join(text.split())
        complaints += [found for found in check_text(name, one_line) if "characters" not in found.message]
    for complaint in complaints:
        print(complaint)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
