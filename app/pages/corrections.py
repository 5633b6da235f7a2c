"""Visitors' corrections, stored if the operator wants to learn from them with `gourmet learn-more`.

The folder has them as `SYSTEM/LABEL/PICTURE.jpg`. A picture is stored as the models see it: a small square
without file name or metadata. A photo has one label, the latest one. Its name is the digest of its pixels.
Where the label contradicts a sure answer, a file beside the photo has that answer.
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
from typing import Final, NamedTuple

from flask import Flask, Response
from PIL import Image

from app.api.openapi import operation, parameter
from app.api.schemas import Base64Photo, Guess, Kept
from app.api.uploads import one_of, only_photo, photos_and_model
from app.services import NavigationEntry, Services
from app.web.admission import admission, deadline_of_request
from app.web.errors import BadRequest, ServingError
from app.web.http import request_id, route_options, unstored
from gourmet.errors import GourmetError
from gourmet.pictures.decode import Pixels
from gourmet.pictures.label_folders import OTHER, folder_of
from gourmet.served.files import written_aside

MAX_CORRECTIONS: Final = 10_000  # per system
_CONTRADICTED: Final = ".contradicts"


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
            "undo": parameter("`1` has the photo forgotten", enum=["1"]),
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
        label, is_undone = one_of("label", allowed), one_of("undo", ("1",)) == "1"
        if not label:
            raise BadRequest(f"send one photo, and as label one of {', '.join(allowed)}")
        photo = only_photo(sent, "one photo at a time is corrected")
        deadline = deadline_of_request()
        pixels = services.classifier.pixels(system, photo, deadline)
        contradicted = None
        with contextlib.suppress(ServingError, GourmetError):  # a photo is kept while no model answers, too
            answer = services.classifier.classify(photo, deadline, system=system.name)
            if answer.sure and answer.label != label:
                contradicted = Guess(label=answer.label, probability=answer.probability)
        folder = folder_of(label, system.labels) if label in system.labels else OTHER
        # Release the place first, so that photos of others do not wait for a disk that hangs.
        admission().release()
        try:
            if is_undone:
                forget(kept / system.name, name_of(pixels))
            else:
                keep(kept / system.name, folder, pixels, contradicted.label if contradicted else "")
        except OSError as exc:
            app.logger.warning("request %s: a correction may not have been kept: %s", request_id(), exc)
            raise ServingError(
                "corrections_unavailable",
                "corrections cannot be kept at the moment, and this one may be lost: send it again later",
            ) from None
        return unstored(Kept(label=label, contradicted=None if is_undone else contradicted))

    return ()


def name_of(pixels: Pixels) -> str:
    return f"{hashlib.sha256(pixels.tobytes()).hexdigest()[:32]}.jpg"


def keep(folder: Path, label: str, pixels: Pixels, contradicted: str = "") -> None:
    """Store a picture in the folder of its label only; raise OSError or ServingError.

    `contradicted` is the sure answer that the label contradicts.
    """
    name, picture = name_of(pixels), io.BytesIO()
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
            _remove(path, but=target)
        answer = (target / name).with_suffix(_CONTRADICTED)
        if contradicted:
            answer.write_text(contradicted, encoding="utf-8")
        else:
            answer.unlink(missing_ok=True)


def forget(folder: Path, name: str) -> None:
    """Remove the picture of this name."""
    with _alone_in(folder):
        for path in folder.glob(f"*/{name}"):
            _remove(path)


def relabel(folder: Path, name: str, label: str) -> None:
    """Move the picture of this name to another label, of which it is not known what it contradicts."""
    with _alone_in(folder):
        for path in folder.glob(f"*/{name}"):
            target = folder / label
            target.mkdir(exist_ok=True, mode=0o700)
            if path.parent != target:
                path.replace(target / name)
                _remove(path)


def _remove(path: Path, but: Path | None = None) -> None:
    if path.parent != but:
        path.unlink(missing_ok=True)
        path.with_suffix(_CONTRADICTED).unlink(missing_ok=True)


class Correction(NamedTuple):
    """A stored picture: its file's name, its folder, and the sure answer that its label contradicts."""

    name: str
    folder: str
    contradicted: str


def stored(folder: Path) -> list[Correction]:
    """Return the stored pictures, those that contradict a sure answer first, then the latest first."""
    if not sum(counts(folder).values()):
        return []
    answers = {
        path.with_suffix(".jpg"): path.read_text(encoding="utf-8")
        for path in folder.glob(f"*/*{_CONTRADICTED}")
    }
    times = {path: path.stat().st_mtime for path in folder.glob("*/*.jpg")}
    paths = sorted(times, key=lambda path: (path not in answers, -times[path]))
    return [Correction(path.name, path.parent.name, answers.get(path, "")) for path in paths]


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
