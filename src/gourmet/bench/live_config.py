"""Configs that go to a running server for a while, and what served before put back afterwards."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from gourmet.bench.task import Target
from gourmet.config_change import Config
from gourmet.serving.asking import TritonUnreachable, triton

_LOADS_WITHIN_S: Final = 180.0
_TRIES: Final = 5


@contextmanager
def restored(target: Target, models: Sequence[str]) -> Iterator[dict[str, Config]]:
    """The configs that serve now, put back afterwards, after Ctrl-C and SIGTERM too.

    Whoever replaces an entry of the dictionary has that config served afterwards instead.
    """
    with triton(target.url) as client:
        running = {model: client.get_model_config(model) for model in models}
    with _signals({signal.SIGTERM: _end}):
        try:
            yield running
        finally:
            # A second Ctrl-C would leave the server with whatever was being tried.
            with _signals({signal.SIGINT: signal.SIG_IGN, signal.SIGTERM: signal.SIG_IGN}):
                for model, config in running.items():
                    load(target, model, config)


def load(target: Target, model: str, config: Mapping[str, Any]) -> None:
    """Have the server load `model` with `config`."""
    # A server that starts many instances on few cores may be too busy to pick up at once.
    for left in reversed(range(_TRIES)):
        try:
            with triton(target.url, timeout_s=_LOADS_WITHIN_S) as client:
                client.load_model(model, config=json.dumps(config))
            return
        except TritonUnreachable:
            if not left:
                raise


def _end(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


@contextmanager
def _signals(handlers: Mapping[signal.Signals, Any]) -> Iterator[None]:
    """Other handlers for a while; signals reach the main thread alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
