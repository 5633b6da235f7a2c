"""gunicorn as the product runs it, which also writes down through which of our modules each request goes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

from support import walk

from app.admission import gunicorn_conf as product
from app.admission.gunicorn_conf import *  # noqa: F403


def post_fork(server: Any, worker: Any) -> None:
    product.post_fork(server, worker)
    walk.begin()
