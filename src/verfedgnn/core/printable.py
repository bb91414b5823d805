"""Foreign text, such as titles, ids and reasons from peers, made safe for a terminal or a log."""

from __future__ import annotations


def make_printable(text: str) -> str:
    """Return `text` with "?" for every character that a terminal may interpret; line breaks stay.

    Those are control characters, which begin escape sequences, and invisible ones, which change the direction of text.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character == "\n" else " " if character.isspace() else "?"
        for character in text
    )
