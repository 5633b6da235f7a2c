"""`gourmet perf-analyzer`: the real one, out of the tritonclient wheel."""

from __future__ import annotations

import click

from gourmet.measure.perf_analyzer import run_as_is


@click.command(
    name="perf-analyzer",
    context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def perf_analyzer(ctx: click.Context, arguments: tuple[str, ...]) -> None:
    """Run NVIDIA's perf_analyzer with the libraries it needs; all ARGUMENTS are its own.

    \b
    gourmet perf-analyzer -m food_classifier_onnx --concurrency-range 1:4
    gourmet perf-analyzer -- --help        # NVIDIA's own

    Without -u it asks the Triton at TRITON_SERVER_URL, or else that of the running stack.
    """
    status = run_as_is(arguments)
    # NVIDIA's ends with 99 after its own help, which nobody did wrong to ask for.
    ctx.exit(0 if "--help" in arguments else status)
