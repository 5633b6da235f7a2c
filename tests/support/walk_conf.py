"""gunicorn as the product runs it, which also writes down through which of our modules each request goes.

WALK_FILE gets, at the end of a request, the modules in which a function ran since the end of the one before.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from app.admission import gunicorn_conf as product
from app.admission.gunicorn_conf import *  # noqa: F403

ROOT = Path(__file__).parents[2]
OURS = tuple(f"{ROOT / folder}/" for folder in ("app", "src", "triton"))
_seen: set[str] = set()


def _note(frame: FrameType, event: str, _: Any) -> None:
    if event == "call":
        _seen.add(frame.f_code.co_filename)


def post_fork(server: Any, worker: Any) -> None:
    product.post_fork(server, worker)
    threading.setprofile(_note)
    sys.setprofile(_note)


def post_request(worker: Any, request: Any, environ: Any, response: Any) -> None:
    ours = {file for file in _seen if file.startswith(OURS) and file.endswith(".py")}
    Path(os.environ["WALK_FILE"]).write_text("\n".join(sorted(ours)))
    _seen.clear()
