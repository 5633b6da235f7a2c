"""Configs that go to a running server for a while, and what served before put back afterwards."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from gourmet.config_change import Config
from gourmet.measure.task import Addresses
from gourmet.runtime.signals import handled
from gourmet.serving.client import TritonUnreachable, triton

_LOADS_WITHIN_S: Final = 180.0
_TRIES: Final = 5


@contextmanager
def restored(target: Addresses, models: Sequence[str]) -> Iterator[dict[str, Config]]:
    """The configs that serve now, put back afterwards, after Ctrl-C and SIGTERM too.

    Whoever replaces an entry of the dictionary has that config served afterwards instead.
    """
    with triton(target.url) as client:
        running = {model: client.get_model_config(model) for model in models}
    with handled({signal.SIGTERM: lambda number, _frame: sys.exit(128 + number)}):
        try:
            yield running
        finally:
            # A second Ctrl-C would leave the server with whatever was being tried.
            with handled({signal.SIGINT: signal.SIG_IGN, signal.SIGTERM: signal.SIG_IGN}):
                for model, config in running.items():
                    load(target, model, config)


def load(target: Addresses, model: str, config: Mapping[str, Any]) -> None:
    # A server that starts many instances on few cores may be too busy to pick up at once.
    for left in reversed(range(_TRIES)):
        try:
            with triton(target.url, timeout_s=_LOADS_WITHIN_S) as client:
                client.load_model(model, config=json.dumps(config))
            return
        except TritonUnreachable:
            if not left:
                raise
