"""Options that several verbs take alike: where the stack is, what was trained, how to answer a script."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from gourmet import repository
from gourmet.commands.values import PATH
from gourmet.repository.lock import changing
from gourmet.runtime.home import own_models
from gourmet.serving.run_file import DEFAULT_URL, found_url, running_stack
from gourmet.systems import folders


def _usual_repository(ctx: click.Context, _param: click.Parameter, given: Path | None) -> Path:
    """Where the model or the system of a verb lies: the user's own, but for what came with the checkout."""
    named = next(filter(None, map(ctx.params.get, ("system", "model", "name"))), "")
    came_with_it = repository.DEFAULT / named, folders()[0] / named
    return given or (repository.DEFAULT if named and any(map(Path.exists, came_with_it)) else own_models())


Command = TypeVar("Command", bound=Callable[..., Any])

_PORTS: Final = {
    "--port": (5000, "web_url", "Port of the web app."),
    "--http-port": (8000, "http_url", "Triton's HTTP port."),
    "--grpc-port": (8001, "grpc_url", "Triton's gRPC port."),
    "--metrics-port": (8002, "metrics_url", "Triton's metrics port."),
}

json_option = click.option("--json", "as_json", is_flag=True, help="Print it as JSON, for scripts.")
to_option = click.option(
    "--to",
    "models",
    type=PATH,
    callback=_usual_repository,
    show_default="$GOURMET_HOME/models, and triton/models for what came with the checkout",
    help="Use this model repository.",
)


def trained_options(command: Command) -> Command:
    """Add --weights, --data and --architecture: weights that were trained, and what to measure them on."""
    for option in (
        click.option(
            "--architecture",
            default="",
            show_default=False,
            help="Network of weights that others trained, like torchvision:resnet18.",
        ),
        click.option("--data", type=PATH, help="Use these labelled examples.  [default: those of training]"),
        click.option(
            "--weights", type=PATH, help="Trained weights.  [default: runs/SYSTEM/last.safetensors]"
        ),
    ):
        command = option(command)
    return command


def port_options(*, found: bool = False) -> Callable[[Command], Command]:
    """Add --port, --http-port, --grpc-port and --metrics-port; `found`: unless given, the running stack's."""

    def add(command: Command) -> Command:
        for option, (usual, address, words) in reversed(_PORTS.items()):
            command = click.option(
                option,
                type=click.IntRange(1, 65535),
                help=words,
                default=functools.partial(_found_port, usual, address) if found else usual,
                show_default=f"the running stack's, or {usual}" if found else None,
            )(command)
        return command

    return add


def as_options(ports: dict[str, int]) -> dict[str, int]:
    """The ports that a command got, by the options that set them."""
    return {f"--{name.replace('_', '-')}": port for name, port in ports.items()}


def _found_port(usual: int, address: str) -> int:
    stack = running_stack()
    port = str(getattr(stack, address, "")).removesuffix("/metrics").rpartition(":")[2]
    return int(port) if port.isdigit() else usual


def url_option(
    words: str = "Triton's HTTP address.", *, required: bool = True
) -> Callable[[Command], Command]:
    """Add --url, which is TRITON_SERVER_URL if not given, and else the Triton that runs here.

    Where it is not `required`, an address that was not given is None.
    """
    return click.option(
        "--url",
        envvar="TRITON_SERVER_URL",
        show_envvar=True,
        metavar="HOST:PORT",
        help=words,
        callback=_without_scheme,
        default=found_url if required else None,
        show_default=f"the running stack's, or {DEFAULT_URL}" if required else None,
    )


def alone_in(repository: Path) -> AbstractContextManager[None]:
    """Hold the lock of a repository, which a verb takes once and before it looks what is there."""
    return changing(repository, functools.partial(click.echo, err=True))


def serving_url(repository: Path) -> str | None:
    """The address of the running stack, if what changes in `repository` can be loaded into it."""
    stack = running_stack()
    return stack.http_url if stack and stack.serves(repository) else None


def _without_scheme(_ctx: click.Context, _param: click.Parameter, url: str | None) -> str | None:
    return url.removeprefix("http://").rstrip("/") if url else None


def found_repositories() -> tuple[Path, ...]:
    """The folders that the running stack serves, or else the checkout's and the user's own."""
    if stack := running_stack():
        return tuple(map(Path, stack.repositories))
    return (repository.DEFAULT, *filter(Path.is_dir, [own_models()]))


def _served_repositories() -> tuple[Path, ...]:
    """The checkout's, and the user's own, which is made, so that what comes to lie there can be loaded."""
    try:
        own_models().mkdir(parents=True, exist_ok=True)
    except OSError:
        return (repository.DEFAULT,)
    return repository.DEFAULT, own_models()


def repositories_option(*, found: bool = False) -> Callable[[Command], Command]:
    """Add --model-repository; `found`: unless given, it is those that the running stack serves."""
    return click.option(
        "--model-repository",
        "repositories",
        multiple=True,
        type=PATH,
        default=found_repositories if found else _served_repositories,
        show_default=f"{'the running stack’s, or ' if found else ''}triton/models and $GOURMET_HOME/models",
        help="Folder of models; may be given several times.",
    )
