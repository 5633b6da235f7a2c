"""`gourmet perf-analyzer`: the real one, out of the tritonclient wheel."""

from __future__ import annotations

import click

from gourmet.bench.perf_analyzer import run_as_is


@click.command(
    name="perf-analyzer",
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def perf_analyzer(ctx: click.Context, arguments: tuple[str, ...]) -> None:
    """Run NVIDIA's perf_analyzer with the libraries it needs; all ARGUMENTS are its own."""
    ctx.exit(run_as_is(arguments))
