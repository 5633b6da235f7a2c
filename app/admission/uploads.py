"""The bytes of an uploaded photo: capped while they are read, held in memory, never written to disk."""

from __future__ import annotations

import contextlib
import functools
import io
import math
import sched
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import IO, Final

from flask import Flask, Request, current_app, g
from gunicorn.http.errors import ParseException
from multipart import (  # type: ignore[import-untyped]
    MultipartSegment,
    ParserLimitReached,
    PushMultipartParser,
)
from werkzeug.datastructures import FileStorage, MultiDict
from werkzeug.exceptions import ClientDisconnected, RequestEntityTooLarge
from werkzeug.formparser import FormDataParser

from app.admission.queue import admission
from app.admission.shares import Upload
from app.core.errors import BrokenBody, NoFile, ServingError, UploadTooLarge, UploadTooSlow
from app.core.http import marks
from app.core.settings import Settings

FIELD: Final = "file"
# What a multipart body may hold around the photos: boundaries, headers, a few other fields.
WRAPPING_BYTES: Final = 65_536
MAX_OTHER_PARTS: Final = 16
# A client that is still sending does not read the answer, so a little more than allowed is read
# and discarded first; a client that sends even more may find the connection closed.
_DRAINED_BYTES: Final = 50_000_000
# What reading a body raises whose chunks are invalid, or whose connection is lost.
_BROKEN: Final = (ParseException, OSError)
# As much as gunicorn takes from a socket at once: of a smaller piece it keeps the rest, and copies that again
# for every piece that is read of it.
_FORM_CHUNK_BYTES: Final = 1 << 20
_Form = tuple[IO[bytes], MultiDict[str, str], MultiDict[str, FileStorage]]
# By so much a slow upload may be given up later than it could be.
_LOOKS_EVERY_S: Final = 0.1


@functools.cache
def _late() -> sched.scheduler:
    """Gives up, from one thread for all, what is not done in time.

    A timer of its own for every request would start a thread for each, and starting one waits until it runs.
    """
    late = sched.scheduler()

    def watch() -> None:
        while True:
            time.sleep(_LOOKS_EVERY_S)
            late.run(blocking=False)

    threading.Thread(target=watch, name="deadlines", daemon=True).start()
    return late


@contextlib.contextmanager
def within(seconds: float, give_up: Callable[[], None]) -> Iterator[None]:
    """Call `give_up`, from another thread, if the block lasts longer than `seconds`."""
    call = _late().enter(seconds, 0, give_up)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # it was called
            _late().cancel(call)


class FormParser(FormDataParser):
    """A form read by `multipart` and not by werkzeug, which takes twenty times as long for a photo.

    werkzeug looks for the boundary with a regular expression, byte by byte; `multipart` asks for it by
    `bytes.find` and hands out what lies between without copying it again (docs/performance.md).
    A malformed form reads as empty, as with werkzeug; one of too many parts, or with too long a text,
    is too large.
    """

    def parse(
        self,
        stream: IO[bytes],
        mimetype: str,
        content_length: int | None,
        options: dict[str, str] | None = None,
    ) -> _Form:
        if mimetype != "multipart/form-data":
            return super().parse(stream, mimetype, content_length, options)
        try:
            fields, files = self._parts(stream, (options or {}).get("boundary", ""))
        except ParserLimitReached as exc:
            raise RequestEntityTooLarge(str(exc)) from exc
        except ValueError:
            return stream, MultiDict(), MultiDict()
        return stream, MultiDict(fields), MultiDict(files)

    def _parts(
        self, stream: IO[bytes], boundary: str
    ) -> tuple[list[tuple[str, str]], list[tuple[str, FileStorage]]]:
        """What is in text fields and what in files, in the order of the form."""
        fields: list[tuple[str, str]] = []
        files: list[tuple[str, FileStorage]] = []
        longest_text = self.max_form_memory_size or math.inf
        parser = PushMultipartParser(boundary, max_segment_count=self.max_form_parts or math.inf)
        for event in parser.parse_blocking(stream.read, _FORM_CHUNK_BYTES):
            if isinstance(event, MultipartSegment):
                part, chunks = event, list[bytes]()
            elif event:
                chunks.append(event)
                if part.filename is None and part.bytes_received > longest_text:
                    raise RequestEntityTooLarge(f"a text in the form is longer than {longest_text} bytes")
            elif part.filename is None:
                fields.append((part.name, b"".join(chunks).decode(errors="replace")))
            else:
                content = io.BytesIO(b"".join(chunks))
                files.append((part.name, FileStorage(content, part.filename, part.name)))
        return fields, files


class ChargedBody:
    """A request's body whose bytes are held against its client as they are read, a megabyte at most late."""

    def __init__(self, body: IO[bytes], upload: Upload) -> None:
        self._body = body
        self._upload = upload

    def read(self, size: int) -> bytes:
        data = self._body.read(size)
        if data:
            self._upload.hold(len(data))
        return data


class UploadRequest(Request):
    """A request whose files stay in memory, where the byte cap keeps them small."""

    form_data_parser_class = FormParser


def init_app(app: Flask, settings: Settings) -> None:
    app.request_class = UploadRequest
    app.config["MAX_CONTENT_LENGTH"] = settings.max_upload_bytes + WRAPPING_BYTES
    app.config["MAX_FORM_PARTS"] = MAX_OTHER_PARTS


def photo(request: Request, settings: Settings) -> bytes:
    """The photo in the form field `file`; raise NoFile, UploadTooLarge or UploadTooSlow."""
    with receiving(request, settings, photo_too_large(settings)):
        upload = request.files.get(FIELD)
        in_form = FIELD in request.form
    if upload is None:
        raise NoFile(
            f"the form's field `{FIELD}` holds text and not a photo: with curl, write -F {FIELD}=@photo.jpg"
            if in_form
            else f"no photo found: send it as the field `{FIELD}` of a multipart form"
        )
    data = upload.stream.read()
    if not data and not upload.filename:
        raise NoFile("no photo was chosen: choose one and send it again")
    observe_photo(data)
    if len(data) > settings.max_upload_bytes:
        raise UploadTooLarge(photo_too_large(settings))
    return data


def observe_photo(data: bytes) -> None:
    """Count a photo that came, by its size."""
    current_app.extensions["metrics"].photo_bytes.observe(len(data))


@contextlib.contextmanager
def receiving(request: Request, settings: Settings, too_large: str) -> Iterator[None]:
    """Around whatever reads the body, and that alone: for a limited time, not more than allowed, and timed.

    What follows is the work on the photos, for which this waits until it is the request's turn.
    """
    started = time.perf_counter()
    body = request.environ["wsgi.input"]
    with _in_time(request, settings.upload_deadline_s):
        request.environ["wsgi.input"] = ChargedBody(body, g.upload)
        try:
            yield
        except (RequestEntityTooLarge, ServingError) as exc:
            request.environ["wsgi.input"] = body
            _drain(request)
            raise (exc if isinstance(exc, ServingError) else UploadTooLarge(too_large)) from None
    g.receive_ms = (time.perf_counter() - started) * 1000
    admission().acquire()


def discard(request: Request, settings: Settings) -> None:
    """Read and discard what a client still sends, so that it reads the refusal which follows.

    That may take long, and is only done where the request has an upload slot.
    """
    if not marks().admitted:
        return
    with (
        contextlib.suppress(ClientDisconnected, UploadTooSlow, BrokenBody),
        _in_time(request, settings.upload_deadline_s),
    ):
        _drain(request)


def photo_too_large(settings: Settings) -> str:
    return f"the photo is larger than {settings.max_upload_mb:g} MB: send a smaller one, or save it as JPEG"


def _drain(request: Request) -> None:
    stream, left = request.environ["wsgi.input"], _DRAINED_BYTES
    if request.content_length is None and not request.environ.get("wsgi.input_terminated"):
        return
    left = min(left, request.content_length or left)
    with contextlib.suppress(*_BROKEN):
        while left > 0 and (chunk := stream.read(min(left, 65_536))):
            left -= len(chunk)


@contextlib.contextmanager
def _in_time(request: Request, seconds: float) -> Iterator[None]:
    """Let a client send for `seconds`: then no more is read, so that it does not keep a thread busy.

    gunicorn waits for a request's body for ever; it hands out the socket, and one whose reading
    side is shut down reads as ended.
    """
    connection: socket.socket | None = request.environ.get("gunicorn.socket")
    if connection is None:
        yield
        return
    timed_out = threading.Event()

    def hang_up() -> None:
        timed_out.set()
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RD)

    try:
        with within(seconds, hang_up):
            yield
    except ClientDisconnected:
        current_app.logger.info("the client ended its upload early")
        if not timed_out.is_set():
            raise
    except _BROKEN as exc:
        if not timed_out.is_set():
            raise BrokenBody("the request's body has invalid chunks, or its connection was lost") from exc
    if timed_out.is_set():
        raise UploadTooSlow(f"the photo did not arrive within {seconds:g} s: send a smaller one")
