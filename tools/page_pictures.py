"""Make the pictures of the served page in docs/images: page-top.png, page-desktop.png and page-phone.png.

    python tools/page_pictures.py [RUN [FOLDER]]

Without RUN it trains MovieLens-100K by genre with three parties, which takes a few minutes and needs the data set in the
folder VERFEDGNN_DATA. It needs the extras `dev` and `serve` and an installed Chromium. FOLDER is docs/images by default.
"""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAM = [sys.executable, "-m", "verfedgnn"]
TRAINING = ["train", "--data", "ml-100k", "--by", "genre", "--parties", "3", "--threads", "1"]
USER = "189"
DESKTOP = (1200, 1640)
PHONE = (390, 844)
PARTS = ("#verdict", ".best", "#changed")
"""Parts of the page that the picture of a phone shows side by side."""


def main() -> None:
    """Train if no run is given, serve the run and save the pictures."""
    images = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).parents[1] / "docs" / "images"
    with tempfile.TemporaryDirectory() as folder:
        run = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(folder) / "ml100k"
        if not run.exists():
            subprocess.run([*PROGRAM, *TRAINING, "--out", str(run)], check=True)
        with serve(run) as address, open_browser() as browser:
            page = open_page(browser, address, DESKTOP)
            page.screenshot(path=images / "page-desktop.png")
            top = {"x": 0, "y": 0, "width": DESKTOP[0], "height": 860}
            page.screenshot(path=images / "page-top.png", clip=top)
            photograph_phone(browser, address, images / "page-phone.png")


@contextmanager
def serve(run: Path) -> Iterator[str]:
    """Serve a run, and yield the address."""
    command = [*PROGRAM, "serve", str(run), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        found = re.search(r"http://[\d.:]+", server.stdout.readline())
        if found is None:
            sys.exit("the server did not start")
        try:
            yield found.group()
        finally:
            server.terminate()


@contextmanager
def open_browser() -> Iterator[Any]:
    """Start a headless Chromium."""
    from playwright.sync_api import sync_playwright

    names = ("chromium", "chromium-browser", "google-chrome")
    chromium = next((path for name in names if (path := shutil.which(name))), None)
    if chromium is None:
        sys.exit("Chromium must be installed")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


def open_page(browser: Any, address: str, size: tuple[int, int], **options: Any) -> Any:
    """Open the page at a user, in a window of this size."""
    viewport = {"width": size[0], "height": size[1]}
    page = browser.new_page(viewport=viewport, color_scheme="light", reduced_motion="reduce", **options)
    page.goto(f"{address}/#user={USER}")
    page.wait_for_selector("#best li")
    page.wait_for_load_state("networkidle")
    return page


def photograph_phone(browser: Any, address: str, path: Path) -> None:
    """Save a picture of several parts of the page on a phone, side by side."""
    page = open_page(browser, address, PHONE)
    shots = []
    for part in PARTS:
        page.evaluate(
            "(part) => scrollTo(0, document.querySelector(part).getBoundingClientRect().top + scrollY - 80)",
            part,
        )
        shots.append(base64.b64encode(page.screenshot()).decode())
    width = len(PARTS) * (PHONE[0] + 20) - 20
    sheet = browser.new_page(viewport={"width": width, "height": PHONE[1]})
    pictures = "".join(f'<img src="data:image/png;base64,{shot}">' for shot in shots)
    sheet.set_content(f'<body style="margin:0;display:flex;gap:20px;background:#d4dbe7">{pictures}')
    sheet.screenshot(path=path)


if __name__ == "__main__":
    main()
