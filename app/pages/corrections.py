"""Visitors' corrections, stored if the operator wants to learn from them with `gourmet learn-more`.

The folder has them as `SYSTEM/LABEL/PICTURE.jpg`. A picture is stored as the models see it: a small square
without file name or metadata. A photo has one label, the latest one. Its name is the digest of its pixels.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from flask import Flask, Response
from PIL import Image

from app.api.openapi import operation, parameter
from app.api.schemas import Base64Photo, Kept
from app.api.uploads import one_of
from app.photos import only_photo, photos_and_model
from app.services import NavigationEntry, Services
from app.web.admission import admission, deadline_of_request
from app.web.errors import BadRequest, ServingError
from app.web.http import request_id, route_options, unstored
from gourmet.pictures.decode import Pixels
from gourmet.pictures.label_folders import OTHER, folder_of
from gourmet.served.files import written_aside

MAX_CORRECTIONS: Final = 10_000  # per system


def add_routes(app: Flask, services: Services) -> Sequence[NavigationEntry]:
    settings, systems = services.settings, services.pictures
    app.jinja_env.globals["keeps_corrections"] = bool(settings.keep_corrections)
    if not (kept := settings.keep_corrections):
        return ()

    @services.api.post("/corrections")
    @route_options(admitted="photos")
    @operation(
        answer=Kept,
        json=Base64Photo,
        max_photos=1,
        parameters={
            "label": parameter(f"What the photo shows: a label of the system, or `{OTHER}`", required=True),
            "system": parameter(
                "The system of the label; by default the first one", enum=list(services.systems)
            ),
        },
        also=(507,),
    )
    def correct() -> Response:
        """Store a photo with the label that it really shows.

        The app keeps the photo, as a small square, for the operator of this site to train on. A photo that is
        sent again replaces its earlier label.
        """
        sent, _ = photos_and_model(settings)
        system = systems[one_of("system", systems) or services.first_system]
        allowed = (*system.labels, OTHER) if system.subject else system.labels
        label = one_of("label", allowed)
        if not label:
            raise BadRequest(f"send one photo, and as label one of {', '.join(allowed)}")
        photo = only_photo(sent, "one photo at a time is corrected")
        deadline = deadline_of_request()
        pixels = services.classifier.pixels(system, photo, deadline)
        folder = folder_of(label, system.labels) if label in system.labels else OTHER
        # Release the place first, so that photos of others do not wait for a disk that hangs.
        admission().release()
        try:
            keep(kept / system.name, folder, pixels)
        except OSError as exc:
            app.logger.warning("request %s: a correction may not have been kept: %s", request_id(), exc)
            raise ServingError(
                "corrections_unavailable",
                "corrections cannot be kept at the moment, and this one may be lost: send it again later",
            ) from None
        return unstored(Kept(label=label))

    return ()


def keep(folder: Path, label: str, pixels: Pixels) -> None:
    """Store a picture in the folder of its label only; raise OSError or ServingError."""
    name = f"{hashlib.sha256(pixels.tobytes()).hexdigest()[:32]}.jpg"
    picture = io.BytesIO()
    Image.fromarray(pixels).save(picture, "JPEG", quality=92)
    with _alone_in(folder):
        before = list(folder.glob(f"*/{name}"))
        if not before and sum(counts(folder).values()) >= MAX_CORRECTIONS:
            raise ServingError(
                "corrections_full",
                f"{MAX_CORRECTIONS:,} corrections are kept already, which is all that this site takes",
            )
        target = folder / label
        target.mkdir(exist_ok=True, mode=0o700)
        with written_aside(target / name) as aside:
            aside.touch(mode=0o600)
            aside.write_bytes(picture.getvalue())
        for path in before:
            if path.parent != target:
                path.unlink(missing_ok=True)


def counts(folder: Path) -> dict[str, int]:
    """Return the number of pictures in each folder of a label."""
    folders = [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
    return {path.name: _pictures_in(path, path.stat().st_mtime_ns) for path in folders}


@functools.lru_cache
def _pictures_in(folder: Path, _changed_ns: int) -> int:
    return sum(path.suffix == ".jpg" for path in folder.iterdir())


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Lock the folder against other threads and workers, if it can be locked."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)
