"""The head of a request, read as it comes and without waiting for it."""

from __future__ import annotations

import io
import socket
from typing import Final

MOST_BYTES: Final = 65_536
_READ_BYTES: Final = 8192
_ANSWER: Final = b"HTTP/1.1 %b\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
TOO_SLOW: Final = _ANSWER % b"408 Request Timeout"
TOO_LONG: Final = _ANSWER % b"431 Request Header Fields Too Large"


def is_whole(head: bytes) -> bool:
    """Whether gunicorn's parser answers or refuses these bytes without reading on.

    It skips one empty line before the request, and refuses a line that ends without a carriage return.
    """
    start = 2 if head.startswith(b"\r\n") else 0
    return head.find(b"\r\n\r\n", start) >= 0 or head.count(b"\n") != head.count(b"\r\n")


def read(connection: socket.socket, buffer: io.BytesIO) -> bool:
    """Take in what has come; whether the head is whole, or all that will come of it is here.

    Raise ConnectionError where nothing came and nothing will.
    """
    while not is_whole(head := buffer.getvalue()):
        if len(head) > MOST_BYTES:
            return False
        try:
            data = connection.recv(_READ_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        if not data:
            if not head:
                raise ConnectionResetError
            return True
        buffer.seek(0, io.SEEK_END)
        buffer.write(data)
    return True
