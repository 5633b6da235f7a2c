"""The errors of the workbench. The command line prints their messages and exits with their codes."""

from __future__ import annotations

from typing import Final
from unicodedata import category

# Characters that control a terminal or the direction of text, and surrogates.
_CONTROLS: Final = ("Cc", "Cf", "Cs")


def printable(text: str) -> str:
    """Escape control characters: a message may contain names from untrusted files."""
    return "".join(
        char if category(char) not in _CONTROLS or char == "\n" else char.encode("unicode_escape").decode()
        for char in text
    )


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print with control characters escaped: labels and names may come from somebody else's model."""
    import click  # not in the environment of served models

    click.echo(printable(str(text)), err=err, nl=nl)  # noqa: TID251


class GourmetError(Exception):
    """An error that a user can fix. Its message names the value, the allowed values and the next step."""

    exit_code = 1

    def _render_traceback_(self) -> list[str]:
        """Show one sentence in a notebook, as on the command line."""
        return [f"Error: {printable(str(self))}"]


class UsageError(GourmetError):
    """The arguments of a command are wrong."""

    exit_code = 2


class UnknownSystem(GourmetError):
    """A name without a system's folder, or a part that the folder lacks."""
