"""Verbs of `gourmet` in this process, which imports torch once for all of them."""

from __future__ import annotations

from click.testing import CliRunner, Result

from gourmet.cli import main


def gourmet(*words: object, **options: str) -> Result:
    """Run `gourmet WORDS`."""
    return CliRunner().invoke(main, [str(word) for word in words], **options)  # type: ignore[arg-type]


def said(*words: object, status: int = 0) -> str:
    """Run `gourmet WORDS`, which has to end with that status, and return its output."""
    done = gourmet(*words)
    assert done.exit_code == status, done.output
    return done.output
