"""The page "New classifier": photos of each class become a classifier, which `gourmet up` makes.

The page keeps the photos until *Make it* is pressed, then it sends them a few at a time. The app decodes them
as all uploads, and stores small squares without names in a folder of drafts. The folder is deleted when the
work ends.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from flask import Blueprint, Flask, Response, abort, render_template, request, url_for

from app.api.uploads import one_of, photos_and_model
from app.pages.corrections import counts, keep
from app.pages.teach import ask_up, may_teach
from app.services import NavigationEntry, Services
from app.web.admission import deadline_of_request
from app.web.errors import BadRequest, ServingError, as_dict, for_visitor
from app.web.http import as_json, route_options
from gourmet.pictures.errors import PictureError
from gourmet.pictures.label_folders import OTHER, folder_of
from gourmet.systems.described import NAME
from gourmet.systems.registry import names

_DRAFTS: Final = "drafts"
_LABELS: Final = "labels.txt"
_MIN_PHOTOS: Final = 8
_MAX_CLASSES: Final = 200
_MAX_CHARACTERS: Final = 60


def _name_of(title: str) -> str:
    """Return the name of a classifier of this title; of a title in other letters a made-up one."""
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode().lower()
    name = re.sub(r"[^a-z0-9]+", "_", plain).strip("_")[:32]
    if not NAME.fullmatch(name) and any(map(str.isalpha, title)):
        return f"classifier_{hashlib.sha256(title.lower().encode()).hexdigest()[:6]}"
    return name


def add_routes(app: Flask, services: Services) -> Sequence[NavigationEntry]:
    settings = services.settings
    routes = Blueprint("new_classifier", __name__)

    def draft_of(name: str) -> Path:
        """Return the folder for the photos of a classifier, if this client may make one."""
        if not may_teach(settings):
            raise ServingError(
                "key_needed",
                "only programs of this machine, or those that send an API key, may make classifiers",
            )
        if not settings.teach_socket:
            raise ServingError(
                "corrections_unavailable", "no `gourmet up` answers: run `gourmet new NAME --data FOLDER`"
            )
        if not NAME.fullmatch(name):
            raise BadRequest("give it a name with letters")
        return settings.teach_socket.parent / _DRAFTS / name

    def labels_of(draft: Path) -> list[str]:
        try:
            return (draft / _LABELS).read_text(encoding="utf-8").splitlines()
        except OSError:
            raise BadRequest("begin again: the photos were not kept") from None

    @routes.get("/new")
    def page() -> str:
        urls = {"new": url_for("new_classifier.begin"), "page": url_for("pictures.page", name="-")}
        return render_template(
            "new.html",
            is_on=bool(settings.teach_socket) and may_teach(settings),
            max_upload_bytes=settings.max_upload_bytes,
            urls={**urls, "thumbnail": url_for("pages.thumbnail")},
        )

    @routes.post("/new")
    def begin() -> Response:
        """Begin a draft: `title`, and a `label` for each class."""
        title, labels = (
            _line(request.form.get("title", "")),
            [_line(text) for text in request.form.getlist("label")],
        )
        name = _name_of(title)
        draft = draft_of(name)
        if name in names():
            raise BadRequest(f"there is a classifier called {title} already: choose another name")
        if not all(labels) or len({label.lower() for label in labels}) < len(labels):
            raise BadRequest("give each class a name of its own")
        if not 2 <= len([label for label in labels if label.lower() != OTHER]) <= _MAX_CLASSES:
            raise BadRequest(f"a classifier needs 2 to {_MAX_CLASSES} classes")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True, mode=0o700)
        (draft / _LABELS).write_text("".join(f"{label}\n" for label in labels), encoding="utf-8")
        return unstored_json({"name": name})

    @routes.post("/new/<name>/photos")
    @route_options(admitted="photos", charged=True)
    def add(name: str) -> Response:
        """Store photos of the class with the number `label`; name those that cannot be read."""
        draft = draft_of(name)
        labels, refused = labels_of(draft), []
        label = labels[int(one_of("label", [str(number) for number in range(len(labels))]) or 0)]
        for photo in photos_and_model(settings)[0]:
            try:
                system = services.pictures[services.first_system]
                pixels = services.classifier.pixels(system, photo.content(), deadline_of_request())
                keep(draft, _folder(label, labels), pixels)
            except (PictureError, ServingError) as exc:
                refused.append(as_dict(for_visitor(exc))["error"]["message"])
        return unstored_json({"refused": refused})

    @routes.post("/new/<name>")
    def make(name: str) -> Response:
        draft = draft_of(name)
        labels, kept = labels_of(draft), counts(draft)
        for label in labels:
            if label.lower() != OTHER and (lacking := _MIN_PHOTOS - kept.get(_folder(label, labels), 0)) > 0:
                raise BadRequest(f"{label} needs {lacking} more photos: two equal photos count once")
        return state(name, "new", request.form.get("title", name))

    @routes.get("/new/<name>")
    def look(name: str) -> Response:
        draft_of(name)
        return state(name, "look")

    def state(name: str, job: str, title: str = "") -> Response:
        known = ask_up(settings, job, name, _line(title)) or abort(404)
        shown = {key: known[key] for key in ("job", "share", "doing", "error")}
        return unstored_json({**shown, "url": url_for("pictures.page", name=name)})

    app.register_blueprint(routes)
    if not settings.teach_socket:
        return ()
    return [
        NavigationEntry(
            "new_classifier.page", "new.title", is_own=True, is_offered=lambda: may_teach(settings)
        )
    ]


def unstored_json(body: dict[str, Any]) -> Response:
    response = as_json(body)
    response.headers["Cache-Control"] = "no-store"
    return response


def _line(text: str) -> str:
    return " ".join(text.split())[:_MAX_CHARACTERS]


def _folder(label: str, labels: Sequence[str]) -> str:
    return OTHER if label.lower() == OTHER else folder_of(label, labels)
