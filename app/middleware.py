"""What every request passes: before a view in this order, and after it in reverse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from app.admission import auth, queue, rate_limit, uploads
from app.core import errors, hosts_and_cors, http, logs, messages, metrics, tracing
from app.core.http import FlaskApp
from app.core.settings import Settings

MIDDLEWARE: Final[tuple[Callable[[FlaskApp, Settings], None], ...]] = (
    uploads.init_app,
    metrics.init_app,
    logs.init_app,
    http.init_app,
    tracing.init_app,
    hosts_and_cors.init_app,
    queue.init_app,
    auth.init_app,
    rate_limit.init_app,
    messages.init_app,
    errors.init_app,
)
