"""Has a model loaded anew whose Python process died, since Triton itself does not start one again.

Triton's Python backend runs each instance of a model in a process of its own, a stub. Where one dies, by
the kernel's hand for want of memory or by a library that crashes, its instance fails every request
from then on, and Triton loads a model that it has only anew where its config differs: hence a parameter
that counts. The instances before go on answering until the new ones do. Triton does not end those of a model
of which one died, so that is done here.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from gourmet.errors import GourmetError
from gourmet.serving.asking import triton

_EVERY_S: Final = 0.5
_LOAD_S: Final = 120.0
# Longer than anybody waits for an answer: what the instances before had begun is over by then.
_LAST_ANSWERS_S: Final = 15.0
_STUB: Final = "triton_python_backend_stub"
_PARAMETER: Final = "stubs_died"


class Stubs:
    """Those of the Triton at `url` (host:port); `look` is to be called all the time."""

    def __init__(self, url: str, say: Callable[[str], None]) -> None:
        self._url = url
        self._say = say
        self._next_look = 0.0
        self._triton: int | None = None
        self._models: dict[int, str] = {}
        self._over: set[int] = set()
        self._loading: threading.Thread | None = None
        self._deaths = 0

    def look(self, triton_pid: int | None) -> None:
        """Notice stubs that died, and have their models loaded anew in a thread of its own."""
        busy = self._loading is not None and self._loading.is_alive()
        if triton_pid is None or busy or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _EVERY_S
        if triton_pid != self._triton:
            self._triton, self._models, self._over = triton_pid, {}, set()
        over = set()
        for pid, state in _children(triton_pid):
            if state == "Z":
                over.add(pid)
            else:
                self._models[pid] = self._models.get(pid) or _model(pid)
        # Those that Triton ended itself it asks after at once.
        dead = {self._models.pop(pid, "") for pid in over & self._over} - {""}
        self._over = over
        if dead:
            self._loading = threading.Thread(target=self._load_anew, args=(dead,), daemon=True)
            self._loading.start()

    def _load_anew(self, models: set[str]) -> None:
        for model in sorted(models):
            self._load_one_anew(model)

    def _load_one_anew(self, model: str) -> None:
        before = [pid for pid, name in self._models.items() if name == model]
        self._deaths += 1
        self._say(f"a process of the model {model!r} died; loading the model anew")
        try:
            with triton(self._url, _LOAD_S) as client:
                config = client.get_model_config(model)
                config.setdefault("parameters", {})[_PARAMETER] = {"string_value": str(self._deaths)}
                client.load_model(model, config=json.dumps(config))
        except GourmetError as exc:
            self._say(f"the model {model!r} could not be loaded anew: {exc}")
            return
        time.sleep(_LAST_ANSWERS_S)
        for pid in before:
            self._models.pop(pid, None)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _children(parent: int) -> Iterator[tuple[int, str]]:
    """The processes that `parent` started, with their state; Z: over, and not asked after."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, of, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(of) == parent:
                yield int(folder.name), state


def _model(pid: int) -> str:
    """The model that a stub runs; its first argument is the model's file, in the folder of a version."""
    with contextlib.suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
        if command[0].endswith(_STUB):
            return Path(command[1]).parents[1].name
    return ""
