"""Choices of a judged training, repeated by the one on all ratings."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import pytest

from verfedgnn.core.pairs import Choices


def never(*_: object) -> NoReturn:
    raise AssertionError("nothing may be chosen again")


def test_the_first_option_with_the_least_error_is_recorded() -> None:
    choices = Choices()
    assert choices.choose("damping", [1, 2, 3], lambda option: abs(option - 2.5)) == 2
    assert choices.make("round", lambda: 7) == 7
    assert choices.recorded == {"damping": 2, "round": 7}


def test_repeated_choices_are_read_and_not_made() -> None:
    choices = Choices()
    choices.choose("damping", [1, 2, 3], lambda option: -option)
    again = choices.repeat()
    assert again.choose("damping", [1, 2], never) == 3
    assert again.make("damping", never) == 3


@pytest.mark.parametrize("ask", [lambda c: c.choose("x", [1], never), lambda c: c.make("x", never)])
def test_a_choice_that_was_never_made_cannot_be_repeated(ask: Callable[[Choices], object]) -> None:
    with pytest.raises(KeyError, match="x"):
        ask(Choices().repeat())
