"""The static files of the web page."""

from __future__ import annotations

from importlib import resources

_SCRIPTS = ("server.js", "draw.js", "items.js", "suggest.js", "newcomer.js", "runs.js", "page.js")
PAGE_FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    **{f"/{name}": (name, "text/javascript; charset=utf-8") for name in _SCRIPTS},
}
"""File name and media type by path."""


def read_page_file(name: str) -> bytes:
    """Return the content of a file of the page."""
    return (resources.files("verfedgnn.serving") / "page" / name).read_bytes()
