"""Have the running stack serve what a verb changed: load and ask models, and reload the web app."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil

from gourmet.bench.inputs import DataSource, rows_for
from gourmet.commands.options import asked_stack
from gourmet.commands.progress import bar
from gourmet.errors import GourmetError, UsageError, echo
from gourmet.repository.config_file import LABELS_FILE
from gourmet.repository.deploy import deploy
from gourmet.repository.gate import Deployment, table
from gourmet.repository.models import read_config
from gourmet.repository.versions import version_numbers
from gourmet.stack.connect import LOADS_WITHIN_S, connect
from gourmet.stack.processes import http_ok, wait_until
from gourmet.systems import registry
from gourmet.triton_client.model_config import as_json
from gourmet.triton_client.triton import BadSample, Triton, ask_sample

_RELOADED_WITHIN_S: Final = 60.0
_SEEN_WITHIN_S: Final = 10.0
_TWICE: Final = "two or more repositories"


def install(
    deployment: Deployment,
    form: str,
    models: Path,
    url: str | None,
    *,
    send: bool = False,
    check: Callable[[Path], None] = lambda _version: None,
    **how: Any,
) -> tuple[Path, str]:
    """Deploy a format, and have the Triton at `url`, if any, load it and answer its sample.

    Return the version's folder, and a text with the checks of the gate and the answer. `check` is called with
    the version in place; `how` goes to `deploy`. If a step fails, both disk and Triton are as before.
    """
    answers = list[str]()

    def serve(version: Path) -> None:
        check(version)
        if url:
            answers.append(load_and_ask(url, version.parent, send=send))

    with served_as_before(url, [models / deployment.targets[form].model], send=send):
        version, checks = deploy(deployment, form, models, serve=serve, **how)
    return version, "\n".join([table(checks), *answers])


def load_and_ask(
    url: str, model: Path, *, send: bool = False, answers_within_s: float = LOADS_WITHIN_S
) -> str:
    """Load the latest version of `model` and describe its answer; raise unless that version answers."""
    name, number = model.name, version_numbers(model)[-1]
    with connect(url, LOADS_WITHIN_S) as triton:
        if not _load(triton, model, send=send):
            return f"{url} polls its repository: it loads {name} by itself, and was not asked"
        info = triton.describe(name)
        if info.version != str(number):
            raise GourmetError(
                f"Triton at {url} serves version {info.version} of {name}, not {number}: does it serve "
                f"{model.parent}, and does the version_policy of its config.pbtxt allow for {number}?"
            )
    with connect(url, answers_within_s) as triton:
        return ask_loaded(triton, name)


def _load(triton: Triton, model: Path, *, send: bool) -> bool:
    """Have Triton serve what is on disk; it answers from the old version until the new one is ready.

    With `send`, Triton gets the files of the latest version: it does not see the model's folder. Return
    False if Triton polls its repository, and loads the model by itself.
    """
    if not send:
        # The stack hides a shipped model as soon as the user's own repository has it.
        _wait(lambda: _TWICE not in str(triton.index().get(model.name, {}).get("reason")))
        return triton.load(model.name)
    config = as_json(read_config(model))
    named = config.get("version_policy", {}).get("specific", {}).get("versions")
    of_versions = [model / str(number) for number in named or version_numbers(model)[-1:]]
    paths = [*(path for version in of_versions for path in version.rglob("*")), model / LABELS_FILE]
    files = {str(path.relative_to(model)): path.read_bytes() for path in paths if path.is_file()}
    return triton.load(model.name, config, files)


def load_shipped(url: str, model: str) -> None:
    """Have Triton serve a shipped model again of which the user's versions were removed."""
    with connect(url, LOADS_WITHIN_S) as triton:
        _wait(lambda: model in triton.index())
        triton.load(model)


def _wait(is_seen: Callable[[], bool]) -> None:
    """Wait until the running stack has noticed a changed repository; Triton reports it if it does not."""
    with contextlib.suppress(TimeoutError):
        wait_until(is_seen, _SEEN_WITHIN_S, "")


def ask_loaded(triton: Triton, name: str) -> str:
    """Ask a loaded model for its sample; raise unless it answers."""
    info = triton.describe(name)
    with contextlib.suppress(BadSample):  # the sample is wrong, the model may be right
        if info.system in registry.names():
            return f"{name} answers: {ask_sample(triton, registry.load(info.system), name)}"
    try:
        rows = rows_for(info, DataSource(count=1))
    except UsageError:
        return f"{name} is loaded; its inputs may have any size, so it was not asked"
    inputs = {tensor.name: rows.tensor(tensor, [0]) for tensor in rows.inputs}
    outputs = triton.generate(info, inputs).values()
    if not all(np.isfinite(output).all() for output in outputs if output.dtype.kind == "f"):
        raise GourmetError(f"{name} answers with numbers that are not finite")
    return f"{name} answers"


@contextlib.contextmanager
def served_as_before(url: str | None, models: Sequence[Path], *, send: bool = False) -> Iterator[None]:
    """If the block fails, have Triton serve again what lay on disk before."""
    existed = {model: model.is_dir() for model in models}
    try:
        yield
    except BaseException:
        load_or_unload(url, existed, send=send)
        raise


def load_or_unload(url: str | None, models: Mapping[Path, bool], *, send: bool = False) -> None:
    """Have the Triton at `url`, if any, load each of `models` or, where the value is False, unload it."""
    for model, is_there in models.items() if url else ():
        with contextlib.suppress(GourmetError), connect(str(url), LOADS_WITHIN_S) as triton:
            if is_there:
                _load(triton, model, send=send)
            else:
                triton.unload(model.name)


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
        echo(f"{exc}: stop `gourmet up` and start it again", err=True)
