"""The errors of the workbench; the command line prints their message and exits with their code."""

from __future__ import annotations


class GourmetError(Exception):
    """What a user can do something about; its message names the value, what is allowed and the next step."""

    exit_code = 1


class UsageError(GourmetError):
    """The command line asked for something that makes no sense."""

    exit_code = 2


class UnknownSystem(GourmetError):
    """A name that is not the folder of a system, or a part that its folder lacks."""
