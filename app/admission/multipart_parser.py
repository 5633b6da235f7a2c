"""Multipart forms, read by `multipart` and not by werkzeug, which takes twenty times as long for a photo.

werkzeug looks for the boundary with a regular expression, byte by byte; `multipart` asks for it by
`bytes.find` and hands out what lies between without copying it again (docs/performance.md).
"""

from __future__ import annotations

import io
import math
from typing import IO, Final

from multipart import (  # type: ignore[import-untyped]
    MultipartSegment,
    ParserLimitReached,
    PushMultipartParser,
)
from werkzeug.datastructures import FileStorage, MultiDict
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.formparser import FormDataParser

# As much as gunicorn takes from a socket at once: of a smaller piece it keeps the rest, and copies that again
# for every piece that is read of it.
_CHUNK_BYTES: Final = 1 << 20
_Form = tuple[IO[bytes], MultiDict[str, str], MultiDict[str, FileStorage]]


class FormParser(FormDataParser):
    """What a request's `form` and `files` come from; files are kept in memory.

    A form that is none reads as empty, as with werkzeug; one of too many parts, or with too long a text,
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
        for event in parser.parse_blocking(stream.read, _CHUNK_BYTES):
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
