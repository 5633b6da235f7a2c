"""A model is loaded and asked before a verb says that it serves: by one Triton, or by several in turn."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import numpy as np

from gourmet.client.errors import TritonRefused
from gourmet.client.model_config import Config
from gourmet.client.sample import BadSample, ask_sample
from gourmet.client.triton import Triton
from gourmet.deploying.deploy import load
from gourmet.errors import GourmetError, UsageError
from gourmet.measure.inputs import DataSource, rows_for
from gourmet.repository import versions
from gourmet.serving.connect import LOADS_WITHIN_S, connect
from gourmet.systems import registry

T = TypeVar("T")


def _nothing(_server: str) -> None:
    pass


def in_turn(url: str, change: Callable[[str], T], back: Callable[[str], object] = _nothing) -> list[T]:
    """What `change` returns for each server of `url`, one after another.

    Where one fails none behind it is changed, and it and those before it go `back`, as far as they can.
    """

    def go_back(server: str) -> None:
        with contextlib.suppress(GourmetError):
            back(server)

    found, servers = [], url.split(",")
    with ExitStack() as undo:
        for server in servers:
            undo.callback(go_back, server)
            try:
                found.append(change(server))
            except GourmetError as exc:
                if len(servers) == 1:
                    raise
                raise GourmetError(f"{server}, number {len(found) + 1} of {len(servers)}: {exc}") from exc
        undo.pop_all()
    return found


def load_and_ask(
    url: str, model: Path, *, send: bool = False, back: Callable[[str], object] = _nothing
) -> str:
    """What the latest version of `model` says, in a sentence; raise unless that is what answers.

    Several servers at `url` load it one after another, and go `back` where one does not answer.
    """
    said = in_turn(url, lambda server: _load_and_ask(server, model, send=send), back)
    servers = f" ({len(said)} servers, one after another)" if len(said) > 1 else ""
    return "\n".join(f"{each}{servers}" for each in dict.fromkeys(said))


def load_config(url: str, model: str, config: Config, before: Mapping[str, Config] | None = None) -> None:
    """Have each server of `url` serve `model` by `config`.

    Of several each is asked then, and where one fails all go back to what they had, which `before` says of
    those that have the new one already.
    """
    had = dict(before or {})

    def change(server: str) -> None:
        with connect(server, LOADS_WITHIN_S) as triton:
            had.setdefault(server, triton.config(model))
            try:
                triton.load(model, config)
            except TritonRefused as exc:
                raise GourmetError(
                    f"Triton refuses this config and goes on with the one before: {exc.reason}"
                ) from exc
            if "," in url:
                _ask(triton, model)

    def back(server: str) -> None:
        if server in had:
            with connect(server, LOADS_WITHIN_S) as triton:
                triton.load(model, had[server])

    # Of one server alone the config of before goes on by itself.
    in_turn(url, change, back if "," in url else _nothing)


def _load_and_ask(url: str, model: Path, *, send: bool) -> str:
    name, number = model.name, versions(model)[-1]
    if not load(url, name, model if send else None):
        return f"{url} polls its repository: it loads {name} by itself, and was not asked"
    with connect(url, LOADS_WITHIN_S) as triton:
        info = triton.describe(name)
        if info.canary:
            return _ask(triton, f"{name}/{number}")
        if info.version != str(number):
            raise GourmetError(
                f"Triton at {url} serves version {info.version} of {name}, not {number}: does it serve "
                f"{model.parent}, and does the version_policy of its config.pbtxt allow for {number}?"
            )
        return _ask(triton, name)


def _ask(triton: Triton, name: str) -> str:
    """What a model that is loaded answers; raise unless it does."""
    info = triton.describe(name)
    with contextlib.suppress(BadSample):  # which says nothing of the model
        if info.system in registry.names():
            return f"{name} answers: {ask_sample(triton, registry.load(info.system), name)}"
    try:
        rows = rows_for(info, DataSource(count=1))
    except UsageError:
        return f"{name} is loaded; its inputs may have any size, so it was not asked"
    asked = {given.name: rows.tensor(given, [0]) for given in rows.inputs}
    answers = triton.generate(info, asked).values()
    if not all(np.isfinite(each).all() for each in answers if each.dtype.kind == "f"):
        raise GourmetError(f"{name} answers with numbers that are not finite")
    return f"{name} answers"


@contextlib.contextmanager
def served_as_before(url: str | None, models: Sequence[Path], *, send: bool = False) -> Iterator[None]:
    """Where what is within fails, Triton serves again what lies on disk then."""
    there = [model.is_dir() for model in models]
    try:
        yield
    except BaseException:
        for server in url.split(",") if url else ():
            for model, was_there in zip(models, there, strict=True):
                with contextlib.suppress(GourmetError), connect(server, LOADS_WITHIN_S) as triton:
                    load(server, model.name, model if send else None) if was_there else triton.unload(
                        model.name
                    )
        raise
