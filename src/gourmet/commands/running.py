"""Tell the running stack about models or systems that a verb changed."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Final

import click
import psutil

from gourmet.commands.options import alone_in, asked_stack
from gourmet.commands.progress import bar
from gourmet.errors import UsageError
from gourmet.serving.connect import LOADS_WITHIN_S, connect
from gourmet.serving.processes import http_ok, wait_until

_RELOADED_WITHIN_S: Final = 60.0


def tell_web(system: str, *, is_there: bool = True) -> None:
    """Have gunicorn replace its workers, so that the new ones find the changed systems."""
    stack = asked_stack()
    if not stack or not stack.web_url:
        return
    page = f"{stack.web_url}/api/v1/health?system={system}"  # for systems of every task
    try:
        with bar("telling the web app"):
            for child in psutil.Process(stack.pid).children():
                if "gunicorn" in child.cmdline():
                    old = child.children()
                    child.send_signal(signal.SIGHUP)
                    psutil.wait_procs(old, _RELOADED_WITHIN_S)
            wait_until(lambda: http_ok(page) == is_there, _RELOADED_WITHIN_S, f"{page} did not change")
    except TimeoutError as exc:  # the models themselves are changed
        click.echo(f"{exc}: stop `gourmet up` and start it again", err=True)


def repositories_to_change(repositories: tuple[Path, ...]) -> tuple[Path, ...]:
    """Return the repositories that a verb may change, and hold their locks from now on."""
    if not repositories:
        raise UsageError(
            "this changes the repository of a Triton elsewhere: name its folder with --repository"
        )
    for folder in repositories:
        click.get_current_context().with_resource(alone_in(folder))
    return repositories


def unload(model: str, url: str | None) -> None:
    """Unload a model from the Triton at `url`, if there is one."""
    if url:
        with connect(url, LOADS_WITHIN_S) as triton:
            triton.unload(model)
