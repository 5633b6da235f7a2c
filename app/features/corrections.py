"""Visitors' corrections, kept where the operator wants to learn from them by `gourmet learn-more`.

A picture is kept as the models see it, a small square, without its name or anything else that its file said.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from flask import Flask, Response
from PIL import Image

from app.admission.queue import deadline_of_request
from app.api.openapi import Operation, Parameter, documented, photos
from app.api.photo_calls import one_of
from app.api.request_parsing import photos_and_model
from app.api.schemas import Kept
from app.api.services import NavigationEntry, Services
from app.core.errors import BadRequest, RefusedRequest
from app.core.http import marked, unstored
from gourmet.pictures.decode import Pixels
from gourmet.pictures.label_folders import OTHER, folder_of
from gourmet.runtime.files import written_aside

MOST: Final = 10_000


def add(app: Flask, services: Services) -> Sequence[NavigationEntry]:
    folder, settings = services.settings.keep_corrections, services.settings
    app.jinja_env.globals["keeps_corrections"] = folder is not None
    if folder is None:
        return ()
    systems = services.pictures

    @services.api.post("/corrections")
    @marked(admitted="photos")
    @documented(
        Operation(
            Kept,
            bodies=photos(),
            query={
                "label": Parameter(
                    f"What the photo shows: one of the system's labels, or {OTHER} where it is none of them",
                    required=True,
                ),
                "system": Parameter("The system whose label it is; the first of them unless given", systems),
            },
        )
    )
    def correct() -> Response:
        """Say what a photo really shows.

        It is kept, as a small square, for the operator of this site to train on. A photo that is sent again
        replaces what was said of it before.
        """
        sent, _ = photos_and_model(settings)
        system = systems[one_of("system", systems) or services.first_system]
        allowed = (*system.labels, OTHER) if system.subject else system.labels
        label = one_of("label", allowed)
        if not label or len(sent) != 1:
            raise BadRequest(f"send one photo, and as label one of {', '.join(allowed)}")
        if sent[0].fault:
            raise sent[0].fault
        deadline = deadline_of_request(settings.request_deadline_s)
        pixels = services.classifier.pixels(system, sent[0].data, deadline)
        is_other = label not in system.labels
        keep(folder / system.name, OTHER if is_other else folder_of(label, system.labels), pixels)
        return unstored(Kept(label=label))

    return ()


def keep(folder: Path, label_folder: str, pixels: Pixels) -> None:
    """Put a picture into the folder of its label, and nowhere else."""
    name = f"{hashlib.sha256(pixels.tobytes()).hexdigest()[:32]}.jpg"
    picture = io.BytesIO()
    Image.fromarray(pixels).save(picture, "JPEG", quality=92)
    with _alone_in(folder):
        before = list(folder.glob(f"*/{name}"))
        if not before and sum(1 for _ in folder.glob("*/*.jpg")) >= MOST:
            raise RefusedRequest(
                "corrections_full",
                f"{MOST:,} corrections are kept already, which is all that this site takes",
            )
        place = folder / label_folder
        place.mkdir(exist_ok=True, mode=0o700)
        with written_aside(place / name) as aside:
            aside.touch(mode=0o600)
            aside.write_bytes(picture.getvalue())
        for path in before:
            if path.parent != place:
                path.unlink(missing_ok=True)


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """No other thread or worker keeps one meanwhile, where the file system has locks of folders."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)
