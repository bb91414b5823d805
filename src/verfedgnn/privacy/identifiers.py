"""Normalisation of user ids, so that organisations that spell an id differently still match it.

Pseudonyms of `Ann@X.org ` and `ann@x.org` would have nothing in common. Ids are normalised as most sign-in systems do: Unicode
NFKC, case folded, white space trimmed and collapsed, and e-mail addresses reduced to the mailbox. Dots and `+tags` are dropped
for Gmail only; elsewhere they may belong to different people.
"""

from __future__ import annotations

from collections import Counter
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

_GMAIL = ("gmail.com", "googlemail.com")


def normalise_ids(ids: NDArray[np.str_]) -> NDArray[np.str_]:
    """Return the normalised form of each id; normalising twice changes nothing."""
    return np.array([_form(text) for text in ids.tolist()], np.str_)


def select_unambiguous(ids: NDArray[np.str_]) -> tuple[NDArray[np.str_], NDArray[np.int64]]:
    """Return the normalised forms that are not empty and belong to a single row of `ids`, and those rows.

    Rows whose forms collide are left out, because nobody can tell which of them another organisation means.
    """
    forms = normalise_ids(ids)
    times = Counter(forms.tolist())
    rows = np.array([row for row, form in enumerate(forms.tolist()) if form and times[form] == 1], np.int64)
    return forms[rows], rows


def _form(text: str) -> str:
    if text.isascii() and "@" not in text:  # most ids need one pass only
        return _spaced(text.lower())
    text = normalize("NFKC", text)
    # A step can enable an earlier one: without a space, an accent joins its letter. So repeat until nothing changes.
    # This ends, because case folding and NFKC settle within a few passes and everything else shortens the text.
    while (form := _mailbox(_spaced(normalize("NFKC", text.casefold())))) != text:
        text = form
    return form


def _spaced(text: str) -> str:
    # Fixed-width NumPy text cannot end in NUL, so NULs count as white space and are trimmed.
    return " ".join(text.replace("\0", " ").split())


def _mailbox(text: str) -> str:
    """Return an e-mail address without display name, `mailto:` and spaces; return any other text unchanged."""
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
