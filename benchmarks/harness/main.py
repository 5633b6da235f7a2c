"""A benchmark as a program of its own."""

from __future__ import annotations

import sys

import click

from gourmet.errors import GourmetError


def main(command: click.Command) -> None:
    """Run the command line; what a user can do something about is one sentence."""
    try:
        command()
    except GourmetError as exc:
        click.echo(f"Error: {exc}", err=True)
        sys.exit(exc.exit_code)
