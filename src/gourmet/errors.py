"""The errors of the workbench; the command line prints their message and exits with their code.

GourmetError 1            something a user can do something about, said in one sentence
  UsageError 2            what was asked for makes no sense
"""

from __future__ import annotations


class GourmetError(Exception):
    """Its message names the value, what is allowed and the next step."""

    exit_code = 1


class UsageError(GourmetError):
    """The command line asked for something that makes no sense."""

    exit_code = 2
