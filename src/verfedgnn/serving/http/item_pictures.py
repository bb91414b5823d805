"""Pictures of items: files below one folder, sent by the server, or addresses of hosts that the operator allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from verfedgnn.core.errors import ConfigError

KINDS = {
    ".avif": "image/avif",
    ".gif": "image/gif",
    ".jpeg": "image/jpeg",
    ".jpg": "image/jpeg",
    ".png": "image/png",
    ".webp": "image/webp",
}
"""Media types by suffix. SVG is left out, because it may hold scripts."""
LARGEST_PICTURE = 5_000_000
"""Maximum size of a picture in bytes."""


@dataclass(frozen=True)
class Pictures:
    """Where pictures may come from."""

    folder: Path | None = None
    """Folder of the pictures that the server sends; paths in the data are relative to it."""
    hosts: tuple[str, ...] = ()
    """Origins, such as https://cdn.example.org, from which the page may load pictures."""

    def read(self, value: str) -> tuple[bytes, str] | None:
        """Return the content and media type of a picture below the folder; None if there is none."""
        if self.folder is None or not value or "://" in value or "\0" in value:
            return None
        path = (self.folder / value).resolve()
        kind = KINDS.get(path.suffix.lower())
        if kind is None or not path.is_relative_to(self.folder):
            return None
        try:
            if not path.is_file() or path.stat().st_size > LARGEST_PICTURE:
                return None
            return path.read_bytes(), kind
        except OSError:
            return None


def read_picture_options(given: Sequence[str]) -> Pictures:
    """Return where pictures come from: at most one folder, and origins that start with https://."""
    folders: list[Path] = []
    hosts = []
    for text in given:
        if "://" not in text:
            folders.append(Path(text))
            continue
        parts = urlsplit(text)
        safe = parts.netloc and all(c.isalnum() or c in ".-:[]" for c in parts.netloc)
        if parts.scheme != "https" or not safe or parts.path.strip("/") or parts.query or parts.fragment:
            raise ConfigError(f"--images {text} is not an https origin; write https://HOST without a path")
        hosts.append(f"https://{parts.netloc}")
    if len(folders) > 1:
        raise ConfigError("--images names two folders; put all pictures below one folder")
    if folders and not folders[0].is_dir():
        raise ConfigError(f"--images {folders[0]} is not a folder; pass the folder that holds the pictures")
    return Pictures(folders[0].resolve() if folders else None, tuple(hosts))
