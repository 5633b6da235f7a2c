"""The health check of both Triton images: the default model of every system answers its sample.

It imports the standard library, numpy, the contracts and gourmet.triton_client over HTTP only, to start fast.
The exit status is 0, or 1 with the reason. If a model hangs, the
script ends the container, and the restart policy starts it again. A container is not ended for other faults.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
from pathlib import Path

from gourmet.contracts import System
from gourmet.errors import GourmetError
from gourmet.systems import registry
from gourmet.triton_client.errors import NoAnswerInTime
from gourmet.triton_client.triton import BadSample, Triton, ask_sample

ADDRESS = "127.0.0.1:8000"
REPOSITORIES = Path("/models"), Path("/gourmet/models")
WHEN_ASKED = re.compile(r'^\s*\{ key: "load" value: \{ string_value: "asked" \} \}', re.MULTILINE)
TIMEOUT_S = 8.0
# Triton, or `gourmet up`: both end at SIGTERM.
FIRST_PROCESS = 1
MAX_HUNG_CHECKS = 6
HUNG = Path(tempfile.gettempdir(), "gourmet-hung-checks")


class Unhealthy(GourmetError):
    """A model does not answer as it should."""


def check_models() -> None:
    with Triton(ADDRESS, TIMEOUT_S) as triton:
        # Triton's statistics list the ready models without a key; its list of all models needs one.
        ready = triton.ready_models()
        for known in registry.load_all().values():
            chosen = os.environ.get(known.model_variable)
            model = chosen or known.default_model
            try:
                if model in ready:
                    check_sample(triton, known, model)
                # A user's own repository need not hold the default model of every system.
                elif chosen or any(is_loaded_at_once(folder / model) for folder in REPOSITORIES):
                    raise Unhealthy(f"{model} is not ready")
            except Unhealthy as exc:
                if not registry.is_data(known.name):
                    raise
                sys.stderr.write(f"{exc}\n")  # a user's own system must not stop the others


def is_loaded_at_once(model: Path) -> bool:
    """Return whether the model is there, and is not one that is loaded when a verb first asks for it."""
    config = model / "config.pbtxt"
    return model.is_dir() and not (config.is_file() and WHEN_ASKED.search(config.read_text(encoding="utf-8")))


def check_sample(triton: Triton, system: System, model: str) -> None:
    """Raise Unhealthy unless `model` answers its system's sample. An unusable sample is only reported."""
    try:
        ask_sample(triton, system, model)
    except BadSample as exc:
        sys.stderr.write(f"{exc}\n")
    except GourmetError as exc:
        if isinstance(exc, NoAnswerInTime) and not registry.is_data(system.name):
            end_if_hung(triton, model)
        raise Unhealthy(f"{model} does not answer: {exc}") from exc


def end_if_hung(triton: Triton, model: str) -> None:
    """End the container if `model` computed nothing in several checks: a busy model is only late."""
    computed = f"{model} {triton.total(model).executions}\n"
    before = HUNG.read_text() if HUNG.exists() else ""
    history = before + computed if before.startswith(computed) else computed
    HUNG.write_text(history)
    if history.count("\n") == MAX_HUNG_CHECKS:
        HUNG.unlink()
        os.kill(FIRST_PROCESS, signal.SIGTERM)


if __name__ == "__main__":
    try:
        check_models()
    except GourmetError as reason:
        sys.exit(str(reason))
