"""Options that several verbs share: the stack, trained weights, the model repository, --json."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from gourmet.commands.values import PATH, folder
from gourmet.errors import UsageError, echo
from gourmet.repository.lock import changing
from gourmet.repository.models import DEFAULT_REPOSITORY, repository_of
from gourmet.served.files import own_models
from gourmet.stack.run_file import DEFAULT_URL, RunningStack, found_url, running_stack, stack_at
from gourmet.systems import folders, registry
from gourmet.triton_client.address import SERVER_ENV, Address


def chosen_repository(ctx: click.Context, _param: click.Parameter | None, chosen: Path | None) -> Path:
    """Return the folder of --repository, or the one where the model or system of the verb lies.

    That is the user's own, where new versions go, unless the model came with the checkout and has no version
    there. If the verb names a Triton, that Triton must serve the folder, unless the model is sent there.
    """
    name = next(filter(None, map(ctx.params.get, ("system", "model", "name"))), "")
    is_ours = name and ((DEFAULT_REPOSITORY / name).exists() or (folders()[0] / name).exists())
    url, send = given_url(), ctx.params.get("send")
    stack = stack_at(url) if url else None
    served, usual = stack.repositories if stack else [], own_models()
    if is_ours and ctx.info_name not in ("deploy", "check"):
        from gourmet.systems.data_systems import models_of

        has_own = name in registry.names() and usual.is_dir() and models_of(name, [usual])
        usual = usual if has_own else repository_of(name)
    if not url:
        if send:
            raise UsageError("--send is for a Triton elsewhere: name it with --url")
        return chosen or usual
    if not chosen and str(usual.resolve()) in served:
        return usual
    if not chosen and len(served) != 1:
        raise UsageError(
            f"this changes the repository of the Triton at {url}: name its folder with --repository"
        )
    chosen = chosen or Path(served[0])
    if served and not send and str(chosen.resolve()) not in served:
        raise UsageError(f"the Triton at {url} does not serve {chosen}: name one of {', '.join(served)}")
    return chosen


Command = TypeVar("Command", bound=Callable[..., Any])

_PORTS: Final = {
    "--port": (5000, "web_url", "Port of the web app."),
    "--http-port": (8000, "http_url", "Triton's HTTP port."),
    "--grpc-port": (8001, "grpc_url", "Triton's gRPC port."),
    "--metrics-port": (8002, "metrics_url", "Triton's metrics port."),
}

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
to_option = click.option(
    "--to",
    "--repository",
    "models",
    type=folder,
    callback=chosen_repository,
    show_default="$GOURMET_HOME/models, or triton/models for a shipped model without a version there",
    help="Use this model repository.",
)
send_option = click.option(
    "--send",
    is_flag=True,
    is_eager=True,
    help="Send the model to a Triton that does not serve --repository; it keeps the model until it ends.",
)


def trained_options(command: Command) -> Command:
    """Add --weights, --data and --architecture."""
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
    """Add the four options of ports; with `found` they default to those of the running stack."""

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
    """Return the ports of a command by the names of their options."""
    return {f"--{name.replace('_', '-')}": port for name, port in ports.items()}


def _found_port(usual: int, address: str) -> int:
    stack = asked_stack()
    port = str(getattr(stack, address, "")).removesuffix("/metrics").rpartition(":")[2]
    return int(port) if port.isdigit() else usual


def url_option(
    words: str = "Triton's address, by HTTP unless https://, grpc:// or grpcs:// is before it.",
    *names: str,
    required: bool = True,
) -> Callable[[Command], Command]:
    """Add --url, which defaults to TRITON_SERVER_URL, and then to the Triton that runs here.

    If it is not `required`, the default is None. It is read before other options.
    """
    return click.option(
        *names,
        "--url",
        "url",
        envvar=SERVER_ENV,
        show_envvar=True,
        is_eager=True,
        metavar="HOST:PORT",
        help=words,
        callback=lambda _ctx, _param, url: str(Address.of(url)) if url else None,
        default=found_url if required else None,
        show_default=f"the running stack's, or {DEFAULT_URL}" if required else None,
    )


@contextmanager
def alone_in(repository: Path) -> Iterator[None]:
    """Lock a repository; a verb takes the lock once, before it reads the folder.

    What a killed verb left half done is put back, and loaded again.
    """
    say = functools.partial(echo, err=True)
    with changing(repository, say) as undone:
        if undone:
            from gourmet.commands.running import load_or_unload

            names = ", ".join(model.name for model in undone)
            say(f"a verb was killed while it changed {names}: what was there before is there again")
            send = bool(click.get_current_context().params.get("send"))
            existing = {model: model.is_dir() for model in undone}
            load_or_unload(given_url() or serving_url(repository), existing, send=send)
        yield


def serving_url(repository: Path) -> str | None:
    """Return the address of the running stack, if it can load changed models of `repository`."""
    stack = running_stack()
    return stack.http_url if stack and stack.serves(repository) else None


def given_url() -> str | None:
    """Return the value of --url or its variable, if one is set."""
    ctx = click.get_current_context(silent=True)
    is_given = ctx and ctx.get_parameter_source("url") not in (None, ParameterSource.DEFAULT)
    return str(ctx.params["url"]) if ctx and is_given else None


def asked_stack() -> RunningStack | None:
    """Return the stack at --url, or else the one that runs here."""
    url = given_url()
    return stack_at(url) if url else running_stack()


def found_repositories() -> tuple[Path, ...]:
    """Return the folders of the stack, or the checkout's and the user's; for a Triton elsewhere, none."""
    from gourmet.stack.connect import repositories_of

    if url := given_url():
        return repositories_of(url)
    if stack := running_stack():
        return tuple(map(Path, stack.repositories))
    return (DEFAULT_REPOSITORY, *filter(Path.is_dir, [own_models()]))


def _served_repositories() -> tuple[Path, ...]:
    """Return the checkout's folder and the user's own; make that, so that new models in it can be loaded."""
    try:
        own_models().mkdir(parents=True, exist_ok=True)
    except OSError:
        return (DEFAULT_REPOSITORY,)
    return DEFAULT_REPOSITORY, own_models()


def repositories_option(*, found: bool = False) -> Callable[[Command], Command]:
    """Add --model-repository; with `found` it defaults to the folders that the running stack serves."""
    return click.option(
        "--model-repository",
        "--repository",
        "repositories",
        multiple=True,
        type=folder,
        default=found_repositories if found else _served_repositories,
        show_default=f"{'the running stack’s, or ' if found else ''}triton/models and $GOURMET_HOME/models",
        help="Folder of models; may be given several times.",
    )
