"""The page's panel "Teach": learn the corrections, compare, use the result, and undo it.

If `gourmet up` runs this app, it does the work (gourmet.stack.teaching). This module shows its state and
starts its jobs, for clients on this machine or with an API key. Otherwise the panel names the commands.
"""

from __future__ import annotations

import ipaddress
import json
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from flask import Blueprint, Flask, Response, redirect, request, url_for

from app.pages.corrections import counts
from app.services import NavigationEntry, Services
from app.web.auth import has_key
from app.web.errors import BadRequest, ServingError
from app.web.http import render
from app.web.settings import Settings
from gourmet.pictures.classifier import PictureClassifier
from gourmet.pictures.label_folders import class_of

_ANSWERS_WITHIN_S: Final = 5.0
_JOBS: Final = ("learn", "use", "undo", "cancel")


def add_routes(app: Flask, services: Services) -> Sequence[NavigationEntry]:
    settings = services.settings
    system = services.pictures[services.first_system]
    routes = Blueprint("teach", __name__)

    folder = settings.keep_corrections and settings.keep_corrections / system.name

    def panel() -> dict[str, Any]:
        by_label = _counts_by_label(folder, system) if folder else {}
        return {
            "system": system.name,
            "folder": str(folder or ""),
            "corrections": by_label,
            "state": _ask(settings, "look"),
        }

    @routes.get("/teach")
    def look() -> Response:
        about = panel()
        return render("teach_page.html", lambda: about, teach=about)

    @routes.post("/teach")
    def do() -> Response:
        job = request.form.get("do", "")
        if job not in _JOBS:
            raise BadRequest(f"do is {job[:50]!r}; allowed: {', '.join(_JOBS)}")
        if not _may_teach(settings):
            raise ServingError(
                "key_needed",
                "only programs of this machine, or those that send an API key, may teach the model",
            )
        if not _ask(settings, job):
            raise ServingError(
                "corrections_unavailable",
                f"no `gourmet up` answers: run `gourmet learn-more {system.name} FOLDER`",
            )
        if request.accept_mimetypes.best_match(["application/json", "text/html"]) == "text/html":
            return redirect(url_for("teach.look"), 303)  # type: ignore[return-value]
        return look()

    app.register_blueprint(routes)
    app.jinja_env.globals["teaching"] = panel
    return ()


def _ask(settings: Settings, job: str) -> dict[str, Any] | None:
    """Run `job` and return the state of teaching; None if teaching is off or refused to this client."""
    if not settings.teach_socket or not _may_teach(settings):
        return None
    folder = os.open(settings.teach_socket.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_ANSWERS_WITHIN_S)
            # A socket's address has at most 108 bytes, and the folder's path may be longer.
            connection.connect(f"/proc/self/fd/{folder}/{settings.teach_socket.name}")
            connection.sendall(json.dumps({"do": job}).encode() + b"\n")
            with connection.makefile() as answer:
                return dict(json.loads(answer.readline()))
    except (OSError, ValueError):
        return None
    finally:
        os.close(folder)


def _may_teach(settings: Settings) -> bool:
    """Return True for a request with a key, or from this machine without a proxy in between."""
    if has_key(settings):
        return True
    is_forwarded = (
        settings.trusted_proxies or "X-Forwarded-For" in request.headers or "Forwarded" in request.headers
    )
    try:
        return not is_forwarded and ipaddress.ip_address(request.remote_addr or "").is_loopback
    except ValueError:
        return False


def _counts_by_label(folder: Path, system: PictureClassifier) -> dict[str, int]:
    """Count the corrected photos by label."""
    none = f"no {system.subject}"
    by_label = dict.fromkeys((*system.labels, none), 0)
    for name, count in counts(folder).items():
        class_id = class_of(name, system.labels)
        by_label[none if class_id is None else system.labels[class_id]] += count
    return {label: count for label, count in by_label.items() if count}
