"""A server that says it is S3 and does harm: it lies, never ends, or names objects as nobody may."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Final
from xml.sax.saxutils import escape

# Of a request's first line, all that is sent back; it may be sent for as long as somebody reads.
Answers = Callable[[str], Iterator[bytes]]
_ABOUT: Final = 'Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\nETag: "x"\r\n'
_MEGABYTE: Final = 1 << 20


def answer(status: str, body: bytes = b"", **headers: str) -> bytes:
    named = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status}\r\n{_ABOUT}{named}Content-Length: {len(body)}\r\n\r\n".encode() + body


def endless(status: str, **headers: str) -> Iterator[bytes]:
    """A body in chunks that goes on for as long as it is read."""
    named = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    yield f"HTTP/1.1 {status}\r\n{_ABOUT}{named}Transfer-Encoding: chunked\r\n\r\n".encode()
    while True:
        yield b"%x\r\n%s\r\n" % (_MEGABYTE, bytes(_MEGABYTE))


def holding(objects: Mapping[str, bytes]) -> Answers:
    """A store that lists these keys, whatever was asked for, and has them."""

    def answers(first_line: str) -> Iterator[bytes]:
        _, path, _ = first_line.split(" ")
        if "list-type=2" in path:
            entries = "".join(
                f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
                f'<ETag>"x"</ETag><Size>{len(data)}</Size></Contents>'
                for key, data in objects.items()
            )
            body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>"
            yield answer("200 OK", body.encode())
        elif (key := path.split("/", 2)[2]) in objects:
            yield answer("200 OK", objects[key])
        else:
            yield answer("404 Not Found")

    return answers


@contextlib.contextmanager
def store(answers: Answers) -> Iterator[dict[str, str]]:
    """The variables by which it is asked."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while True:
                head = b""
                while b"\r\n\r\n" not in head:
                    if not (more := connection.recv(65536)):
                        return
                    head += more
                for piece in answers(head.decode(errors="replace").partition("\r\n")[0]):
                    connection.sendall(piece)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=listener.accept()[:1], daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{listener.getsockname()[1]}",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "somebody",
            "AWS_SECRET_ACCESS_KEY": "the-secret-of-somebody",
        }
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
