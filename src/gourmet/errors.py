"""The errors of the workbench; the command line prints their message and exits with their code."""

from __future__ import annotations

from typing import Final
from unicodedata import category

# What moves a terminal, turns the direction of words, or is no character.
_CONTROLS: Final = ("Cc", "Cf", "Cs")


def printable(text: str) -> str:
    """A text that says nothing to a terminal but its words: names out of somebody's files may be in it."""
    return "".join(
        each if category(each) not in _CONTROLS or each == "\n" else each.encode("unicode_escape").decode()
        for each in text
    )


class GourmetError(Exception):
    """What a user can do something about; its message names the value, what is allowed and the next step."""

    exit_code = 1

    def _render_traceback_(self) -> list[str]:
        """In a notebook it is a sentence, as on the command line."""
        return [f"Error: {printable(str(self))}"]


class UsageError(GourmetError):
    """The command line asked for something that makes no sense."""

    exit_code = 2


class UnknownSystem(GourmetError):
    """A name that is not the folder of a system, or a part that its folder lacks."""
