"""The result page, whose text is written by hand and whose tables are filled in between markers."""

from __future__ import annotations

import os
import re
from pathlib import Path

from verfedgnn.core.errors import ConfigError
from verfedgnn_research.experiments.result_tables import write_text

MARKED = re.compile(r"(<!-- begin (\S+) -->\n).*?(<!-- end \2 -->)", re.DOTALL)
PICTURE = re.compile(r"!\[([^]]*)\]\(")


def fill_page(page: Path, folder: Path) -> None:
    """Replace every `<!-- begin table2 -->` ... `<!-- end table2 -->` by the experiment's page in
    `folder`, if there is one.
    """
    try:
        text = page.read_text("utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read the page {page} ({error.strerror or error})") from None
    way = os.path.relpath(folder, page.parent)

    def made(match: re.Match[str]) -> str:
        source = folder / f"{match[2]}.md"
        if not source.is_file():
            return match[0]
        body = PICTURE.sub(rf"![\1]({way}/", source.read_text("utf-8").split("\n", 2)[2].strip())
        return f"{match[1]}\n{body}\n\n{match[3]}"

    write_text(page, MARKED.sub(made, text))
