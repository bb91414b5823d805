"""The documentation site builds without a warning, has no dead links, and loads nothing from other servers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import verfedgnn as vf
from doc_commands import APP, ROOT

pytest.importorskip("mkdocs", reason="mkdocs is not installed: it is in the extra docs")
pytest.importorskip("material", reason="mkdocs-material is not installed: it is in the extra docs")
pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed: it is in the extra docs")


class Page(HTMLParser):
    """The links, loaded files and anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.leads: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        if known.get("id"):
            self.anchors.add(str(known["id"]))
        if tag == "a" and known.get("href"):
            self.leads.append(str(known["href"]))
        of = {"img": "src", "script": "src", "link": "href", "iframe": "src"}.get(tag)
        if of and known.get(of):
            self.loads.append(str(known[of]))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `make docs` does."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT, text=True, capture_output=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text("utf-8")) for path in site.rglob("*.html") if path.name != "404.html"}


def test_links_and_anchors_are_there(site: Path, pages: dict[Path, Page]) -> None:
    assert len(pages) > 35
    missing = []
    for path, page in pages.items():
        for link in page.leads + page.loads:
            there = urlsplit(link)
            if there.scheme or there.netloc:
                continue
            target = (path.parent / unquote(there.path)).resolve() if there.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                missing.append(f"{path.relative_to(site)}: {link}")
            elif (
                there.fragment
                and target in pages
                and unquote(there.fragment) not in pages[target].anchors | {"__top"}
            ):
                missing.append(f"{path.relative_to(site)}: no anchor {link}")
    assert missing == []


def test_nothing_is_loaded_from_elsewhere(pages: dict[Path, Page]) -> None:
    assert {link for page in pages.values() for link in page.loads if urlsplit(link).netloc} == set()


def test_nothing_is_cut_off_on_a_phone_and_tables_can_be_reached_by_keyboard(site: Path) -> None:
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next((path for name in names if (path := shutil.which(name))), None)
    if path is None:
        pytest.skip("there is no Chromium here")
    with driver.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=["--no-sandbox"], timeout=180_000)
        page = browser.new_page(viewport={"width": 390, "height": 800})
        page.set_default_timeout(180_000)
        for name in (
            "index.html",
            "privacy/index.html",
            "is-it-for-me/index.html",
            "results/lift/index.html",
        ):
            page.goto((site / name).as_uri())
            page.wait_for_selector(".md-typeset__scrollwrap[tabindex]")
            assert page.evaluate("document.documentElement.scrollWidth") == 390, name
            cut = """[...document.querySelectorAll(".md-content :is(pre, table, img, p)")].filter((part) =>
              part.getBoundingClientRect().right > 391 && !part.closest(".md-typeset__scrollwrap"))"""
            assert page.evaluate(f"{cut}.length") == 0, name
        numbers = page.locator("td.number").first
        assert numbers.evaluate("(cell) => getComputedStyle(cell).textAlign") == "right"
        browser.close()


def test_links_have_words(pages: dict[Path, Page]) -> None:
    """A link says where it leads, also to somebody who hears only the links of a page."""
    vague = re.compile(r"<a [^>]*>\s*([Hh]ere|this|link|results|more|below|above|https?://[^<]*)\s*</a>")
    found = {str(path): match.group() for path in pages if (match := vague.search(path.read_text("utf-8")))}
    assert found == {}


def test_the_reference_is_complete(pages: dict[Path, Page], site: Path) -> None:
    python = "".join(
        (site / "reference" / page / "index.html").read_text("utf-8") for page in ("python", "plugins")
    )
    for name in (*vf.__all__, "Operator", "Method", "GNNContract", "MethodContract"):
        assert f'.{name}" class="doc doc-heading"' in python, name
    commands = (site / "reference" / "commands" / "index.html").read_text("utf-8")
    for name, command in APP.commands.items():
        assert f"verfedgnn {name}" in commands
        for option in command.params:
            assert option.opts[0] in commands, f"{name} {option.opts[0]}"
    assert "gradients.noise" in commands, "settings"


def test_lists_and_tables_are_such(site: Path) -> None:
    """Python's Markdown needs an empty line before a list or table; a hook inserts it."""
    unread = re.compile(r"<p>(?:(?!</p>).)*\n(?:- |\| )", re.DOTALL)
    assert [str(path) for path in site.rglob("*.html") if unread.search(path.read_text("utf-8"))] == []
