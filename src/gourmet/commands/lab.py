"""`gourmet lab`: the notebook in JupyterLab, against a running stack."""

from __future__ import annotations

import click

from gourmet.commands.stack_options import port_options
from gourmet.lab.launcher import OpenLab
from gourmet.serving.readable_logs import LogPrinter


@click.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--lab-port", default=8888, show_default=True, type=click.IntRange(1, 65535), help="Port of JupyterLab."
)
@port_options(found=True)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def lab(lab_port: int, arguments: tuple[str, ...], **ports: int) -> None:
    """Open notebooks/triton.ipynb in JupyterLab, until Ctrl-C.

    The notebook asks the Triton at TRITON_SERVER_URL, or at --http-port of this machine; where none runs
    there, Triton and the web app are started too, and end with the lab. JupyterLab listens on loopback
    and wants the token that it prints. ARGUMENTS are its own, such as --no-browser.
    """
    log = LogPrinter()
    OpenLab(ports, log, click.echo).run(lab_port, arguments)
    log.say("gourmet", "stopped")
