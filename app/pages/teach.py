"""The page's panel "Teach": learn the corrections, compare, use the result, and undo it.

If `gourmet up` runs this app, it does the work (gourmet.stack.teaching). This module shows its state and
starts its jobs, for clients on this machine or with an API key. Otherwise the panel names the commands.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import os
import re
import socket
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from flask import Blueprint, Flask, Response, abort, redirect, request, url_for
from werkzeug.security import safe_join

from app.api.uploads import one_of
from app.pages.corrections import forget, relabel, stored
from app.services import NavigationEntry, Services
from app.web.auth import has_key
from app.web.errors import BadRequest, ServingError
from app.web.http import render
from app.web.settings import Settings
from gourmet.pictures.classifier import PictureClassifier
from gourmet.pictures.label_folders import OTHER, class_of, folder_of
from gourmet.systems.registry import is_data

_ANSWERS_WITHIN_S: Final = 5.0
_JOBS: Final = ("learn", "use", "confirm", "undo", "redo", "cancel", "delete")
_CHANGES: Final = ("relabel", "remove")
_PHOTO: Final = re.compile(r"[0-9a-f]{32}\.jpg")
_MIN_PHOTOS: Final = 8
_SHOWN: Final = 120


def add_routes(app: Flask, services: Services) -> Sequence[NavigationEntry]:
    settings = services.settings
    routes = Blueprint("teach", __name__)

    def folder_of_system(system: PictureClassifier) -> Path | None:
        return settings.keep_corrections and settings.keep_corrections / system.name

    def chosen() -> PictureClassifier:
        return services.pictures[one_of("system", services.pictures) or services.first_system]

    def panel(system: PictureClassifier) -> dict[str, Any]:
        folder = folder_of_system(system)
        none = f"no {system.subject}"
        rows = [(kept, class_of(kept.folder, system.labels)) for kept in (stored(folder) if folder else ())]
        photos = [
            {
                "name": kept.name,
                "folder": kept.folder,
                "label": none if class_id is None else system.labels[class_id],
                "contradicted": kept.contradicted,
            }
            for kept, class_id in rows
        ]
        counts = Counter(photo["label"] for photo in photos)
        may_look, state = may_teach(settings), ask_up(settings, "look", system.name)
        return {
            "system": system.name,
            "folder": str(folder or "") if may_look else "",
            "is_on": bool(folder),
            "labels": [*system.labels, *([none] if system.subject else [])],
            "corrections": {label: counts[label] for label in (*system.labels, none) if counts[label]},
            "contradictions": sum(bool(photo["contradicted"]) for photo in photos),
            "photos": photos[:_SHOWN] if may_look else [],
            "lacking": max(0, _MIN_PHOTOS - len(photos)),
            "state": state,
            "may_delete": bool(state) and is_data(system.name),
        }

    @routes.get("/teach")
    def look() -> Response:
        about = panel(chosen())
        return render("teach_page.html", lambda: about, teach=about)

    @routes.get("/teach/<name>/<folder>/<photo>")
    def picture(name: str, folder: str, photo: str) -> Response:
        """Send a stored photo to those who may teach."""
        kept = settings.keep_corrections
        if not kept or name not in services.pictures or not may_teach(settings):
            abort(404)
        path = safe_join(str(kept / name), folder, photo)
        if not path or not path.endswith(".jpg") or not Path(path).is_file():
            abort(404)
        return unstored_jpeg(Path(path).read_bytes())

    @routes.get("/teach/<name>/wrong/<int:number>.jpg")
    def wrong(name: str, number: int) -> Response:
        """Send one of the photos that a new classifier got most wrong."""
        known = ask_up(settings, "look", name) or {}
        photos = (known.get("made") or {}).get("worst", [])
        if number >= len(photos):
            abort(404)
        return unstored_jpeg(base64.b64decode(photos[number]["jpeg"]))

    @routes.post("/teach")
    def do() -> Response:
        job, system = request.form.get("do", ""), chosen()
        if job not in (*_JOBS, *_CHANGES):
            raise BadRequest(f"do is {job[:50]!r}; allowed: {', '.join((*_JOBS, *_CHANGES))}")
        if not may_teach(settings):
            raise ServingError(
                "key_needed",
                "only programs of this machine, or those that send an API key, may teach the model",
            )
        if job in _CHANGES:
            change(system, job)
        elif not ask_up(settings, job, system.name):
            raise ServingError(
                "corrections_unavailable",
                f"no `gourmet up` answers: run `gourmet learn-more {system.name} FOLDER`",
            )
        if request.accept_mimetypes.best_match(["application/json", "text/html"]) == "text/html":
            return redirect(url_for("teach.look", system=system.name), 303)  # type: ignore[return-value]
        return look()

    def change(system: PictureClassifier, job: str) -> None:
        """Remove a stored photo, or give it another label."""
        folder, name, label = (
            folder_of_system(system),
            request.form.get("photo", ""),
            request.form.get("label"),
        )
        if not folder or not _PHOTO.fullmatch(name):
            raise BadRequest("send `photo`, the name of a stored photo")
        if job == "remove":
            forget(folder, name)
        elif label in system.labels:
            relabel(folder, name, folder_of(label, system.labels))
        elif system.subject and label == f"no {system.subject}":
            relabel(folder, name, OTHER)
        else:
            raise BadRequest(f"send `label`, one of {', '.join(system.labels)}")

    app.register_blueprint(routes)
    app.jinja_env.globals["teaching"] = panel
    return ()


def unstored_jpeg(photo: bytes) -> Response:
    return Response(photo, content_type="image/jpeg", headers={"Cache-Control": "no-store"})


def ask_up(settings: Settings, job: str, system: str, title: str = "") -> dict[str, Any] | None:
    """Run `job` and return the system's state; None if `gourmet up` refuses, or this client may not ask."""
    if not settings.teach_socket or not may_teach(settings):
        return None
    folder = os.open(settings.teach_socket.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_ANSWERS_WITHIN_S)
            # A socket's address has at most 108 bytes, and the folder's path may be longer.
            connection.connect(f"/proc/self/fd/{folder}/{settings.teach_socket.name}")
            connection.sendall(json.dumps({"do": job, "system": system, "title": title}).encode() + b"\n")
            with connection.makefile() as answer:
                return dict(json.loads(answer.readline()))
    except (OSError, ValueError, TypeError):  # null: this system cannot learn more
        return None
    finally:
        os.close(folder)


def may_teach(settings: Settings) -> bool:
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
