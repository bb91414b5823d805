"""Make the pictures of docs/tutorials/walk-through.md: terminals as SVG, pages as PNG.

    python tools/walk_through.py [FOLDER]

It runs every command of the walk-through in a temporary folder, which takes two minutes, and needs the extras `dev` and `serve`
and an installed Chromium. FOLDER is docs/images by default.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import IO

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

PROGRAM = [sys.executable, "-m", "verfedgnn"]
COLUMNS = 96
ROWS = 34
"""Most lines of a picture; longer output ends with an ellipsis."""
PROGRESS = re.compile(r"\d+/\d+ (rounds|trials|%)|^\s*$")
SHOPS = ["film=shops/film.parquet", "book=shops/book.parquet", "album=shops/album.parquet"]
DATA = [word for shop in SHOPS for word in ("--data", shop)]
THEME = TerminalTheme(
    (25, 31, 39),
    (231, 236, 243),
    [(25, 31, 39), (240, 153, 123), (111, 207, 151), (231, 165, 107),
     (122, 181, 238), (190, 160, 230), (110, 200, 210), (231, 236, 243)],
)  # fmt: skip
FORMAT = """\
<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" xmlns="http://www.w3.org/2000/svg">
<style>.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: {char_height}px;
line-height: {line_height}px }} .{unique_id}-title {{ font: 18px system-ui, sans-serif }} {styles}</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""
"""Rich's own format without fonts from another server."""


def main() -> None:
    """Run the walk-through and write its pictures."""
    images = Path(
        sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1] / "docs" / "images"
    ).resolve()
    chromium = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))),
        None,
    )
    if chromium is None:
        sys.exit("Chromium must be installed")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        run_command(["data", "synth", "--out", "shops", "--overlap", "0.6"])
        draw_terminal(images / "walk-1-check.svg", ["data", "check", *SHOPS], tail=20)
        train = ["train", *DATA, "--out", "runs/first"]
        draw_terminal(images / "walk-2-train.svg", train)
        draw_terminal(images / "walk-3-report.svg", ["report", "runs/first"])
        photograph(
            chromium, Path("runs/first/report/report.html").resolve().as_uri(), images / "walk-4-report.png"
        )
        draw_terminal(
            images / "walk-5-recommend.svg", ["recommend", "runs/first", "--user", "u0001", "--top", "5"]
        )
        with serve() as (line, address):
            save(images / "walk-6-serve.svg", ["serve", "runs/first", "--port", "0"], [line])
            photograph(chromium, address, images / "walk-7-page.png", click=True)


def run_command(words: list[str]) -> list[str]:
    """Run a command with a terminal for its output, and return its lines: the output, then remarks without progress."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    process = subprocess.Popen(
        [*PROGRAM, *words], stdout=theirs, stderr=subprocess.PIPE, text=True, env=environment
    )
    os.close(theirs)
    remarks: list[str] = []
    assert process.stderr is not None
    reader = Thread(target=_collect, args=(process.stderr, remarks))
    reader.start()
    output = b""
    try:
        while chunk := os.read(ours, 65536):
            output += chunk
    except OSError:  # the terminal is closed when the command ends
        pass
    reader.join()
    if process.wait():
        sys.exit(f"verfedgnn {shlex.join(words)} failed:\n{''.join(remarks)}")
    kept = [line.rstrip() for line in remarks if not PROGRESS.search(line)]
    lines = [*output.decode().replace("\r", "").rstrip().split("\n"), *kept]
    called = re.compile(rf"({re.escape(sys.executable)}|python) -m verfedgnn")
    return [called.sub("verfedgnn", line) for line in lines]


def draw_terminal(path: Path, words: list[str], *, tail: int = 0) -> None:
    """Run a command and save a picture of its terminal; with `tail`, of the last lines only."""
    lines = run_command(words)
    if tail:
        lines = ["…", *lines[-tail:]]
    save(path, words, lines)


def save(path: Path, words: list[str], lines: list[str]) -> None:
    """Save a picture of a terminal with a command and what it printed."""
    command = f"$ verfedgnn {shlex.join(words)}"
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    console.print(Text(command, style="bold"))
    shown = lines if len(lines) <= ROWS else [*lines[: ROWS - 1], "…"]
    for line in shown:
        console.print(Text.from_ansi(line), highlight=False)
    name = path.stem
    svg = console.export_svg(title="verfedgnn", theme=THEME, code_format=FORMAT, unique_id=name)
    path.write_text(re.sub(r"[ \t]+$", "", svg, flags=re.MULTILINE), "utf-8")


@contextmanager
def serve() -> Iterator[tuple[str, str]]:
    """Serve the run, and yield the line that the server prints and its address."""
    with subprocess.Popen(
        [*PROGRAM, "serve", "runs/first", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as server:
        assert server.stdout is not None
        for line in server.stdout:
            found = re.search(r"http://[\d.:]+", line)
            if found:
                break
        else:
            sys.exit("the server did not start")
        try:
            yield line.rstrip(), found.group()
        finally:
            server.terminate()


def photograph(chromium: str, address: str, path: Path, *, click: bool = False) -> None:
    """Save a picture of a page's top; with `click`, of its first example user."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1100, "height": 900}, color_scheme="light")
        page.goto(address)
        if click:
            page.get_by_role("button", name=re.compile("typical")).first.click()
            page.wait_for_load_state("networkidle")
            page.mouse.move(0, 0)
        page.screenshot(path=path)
        browser.close()


def _collect(stream: IO[str], lines: list[str]) -> None:
    lines += stream


if __name__ == "__main__":
    main()
