"""One spelling per user: the form of ids that organisations agree on before they look for common users.

Two organisations rarely type an id alike (`Ann@X.org `, `ann@x.org`), and hashes of two spellings have nothing in common.
The form is what most sign-in systems compare: Unicode NFKC, case folded, white space at the ends dropped and inside collapsed;
an e-mail address is reduced to its mailbox. Dots and `+tags` are dropped for Gmail alone: elsewhere they may be other people.
"""

from __future__ import annotations

from collections import Counter
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

_GMAIL = ("gmail.com", "googlemail.com")


def normalised(ids: NDArray[np.str_]) -> NDArray[np.str_]:
    """The form of each id, in the same order; the form of a form is itself."""
    return np.array([_form(text) for text in ids.tolist()], np.str_)


def unambiguous(ids: NDArray[np.str_]) -> tuple[NDArray[np.str_], NDArray[np.int64]]:
    """The forms that are not empty and come from one row of `ids` only, and that row, in the order of rows.

    Rows whose forms collide are left out, for nobody can tell which of them the other organisation means; whoever calls
    counts and reports them.
    """
    forms = normalised(ids)
    times = Counter(forms.tolist())
    rows = np.array([row for row, form in enumerate(forms.tolist()) if form and times[form] == 1], np.int64)
    return forms[rows], rows


def _form(text: str) -> str:
    if text.isascii() and "@" not in text:  # most ids: one pass is enough
        return _spaced(text.lower())
    text = normalize("NFKC", text)
    # A step can make work for an earlier one (dropping a space lets an accent join its letter), so until nothing changes.
    # It ends: case folding and NFKC settle within a few passes, and all else shortens the text.
    while (form := _mailbox(_spaced(normalize("NFKC", text.casefold())))) != text:
        text = form
    return form


def _spaced(text: str) -> str:
    # Fixed-width numpy text cannot end in NUL: as white space it is dropped there before numpy does.
    return " ".join(text.replace("\0", " ").split())


def _mailbox(text: str) -> str:
    """`text` without display name, `mailto:` and spaces if it is an e-mail address, else as it is."""
    if "@" not in text:
        return text
    address = text[text.rfind("<") + 1 : -1] if "<" in text and text.endswith(">") else text
    local, _, domain = address.replace(" ", "").removeprefix("mailto:").partition("@")
    if not local or not domain or "@" in domain:
        return text
    if domain in _GMAIL:
        domain = _GMAIL[0]
        local = local.partition("+")[0].replace(".", "") or local
    return f"{local}@{domain}"
