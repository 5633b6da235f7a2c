"""One client that asks for all it can get, beside one that asks now and then: what is left for the other?

`python -m support.greedy PORT KIND CONNECTIONS SECONDS` is the first, in a process of its own.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from PIL import Image

from gourmet.systems.captioner.contract import SYSTEM as CAPTIONER
from gourmet.systems.food11.contract import SYSTEM as FOOD
from gourmet.systems.translator.contract import SYSTEM as TRANSLATOR

GREEDY, HONEST = "127.0.0.2", "127.0.0.1"
CONNECTIONS: Final = 16
_SENTENCES: Final = [text.decode() for text in TRANSLATOR.examples(20, seed=3)]
_LONG: Final = " ".join(_SENTENCES * 3)[:1900]
_REFUSED_PAUSE_S: Final = 0.1


@dataclass(frozen=True)
class GreedyRequest:
    method: str
    path: str
    body: bytes = b""
    content_type: str = ""


def _text(**fields: Any) -> GreedyRequest:
    return GreedyRequest("POST", "/api/v1/translate", json.dumps(fields).encode(), "application/json")


def _apart() -> bytes:
    """The sample as a GIF, which no decoder of this process is trusted with."""
    out = io.BytesIO()
    Image.open(io.BytesIO(FOOD.sample())).convert("P").save(out, "GIF")
    return out.getvalue()


def _tiny() -> str:
    out = io.BytesIO()
    Image.new("P", (1, 1)).save(out, "GIF")
    return base64.b64encode(out.getvalue()).decode()


def _vast() -> bytes:
    """Fifteen million pixels in 644 bytes, which are decoded apart."""
    out = io.BytesIO()
    Image.new("RGB", (5000, 3000)).save(out, "WEBP", lossless=True)
    return out.getvalue()


def requests(kind: str) -> tuple[GreedyRequest, GreedyRequest]:
    """What the greedy one sends all the time, and the honest one now and then."""
    photo = GreedyRequest("POST", "/api/v1/classify", FOOD.sample(), "image/jpeg")
    apart = GreedyRequest("POST", "/api/v1/classify", _apart(), "image/gif")
    heat_map = GreedyRequest("POST", "/api/v1/explain?grid=7", FOOD.sample(), "image/jpeg")
    page, sentence = GreedyRequest("GET", "/"), _SENTENCES[0]
    whole, stream, beams = _text(text=sentence), _text(text=sentence, stream=True), _text(text=sentence)
    beams = _text(text=sentence, options={"beams": 4})
    lines = _text(texts=["\n".join(["Да."] * 100)] * 4)
    # A picture of a few bytes costs as much to describe as any other.
    tiny = {"images": [_tiny()] * 16, "options": {"beams": 4}}
    captions = GreedyRequest("POST", "/api/v1/caption", json.dumps(tiny).encode(), "application/json")
    caption = GreedyRequest("POST", "/api/v1/caption", CAPTIONER.sample(), "image/jpeg")
    vast = base64.b64encode(_vast()).decode()
    vast_ones = GreedyRequest(
        "POST", "/api/v1/caption", json.dumps({"images": [vast] * 16}).encode(), "application/json"
    )
    vast_map = GreedyRequest("POST", "/api/v1/explain", _vast(), "image/webp")
    return {
        "captions": (captions, caption),
        "captions beside photos": (captions, photo),
        "captions beside vast pictures": (vast_ones, caption),
        "photos beside heat maps of vast pictures": (vast_map, photo),
        "photos": (photo, photo),
        "pages": (page, page),
        "translations": (lines, whole),
        "streams": (_text(text=_LONG, stream=True), stream),
        "beams": (_text(text=_LONG, options={"beams": 4}), beams),
        "heat maps": (heat_map, heat_map),
        "pictures decoded apart": (apart, apart),
        "translations beside photos": (lines, photo),
        "translations beside pages": (lines, page),
    }[kind]


KINDS: Final = (
    "photos",
    "pages",
    "translations",
    "streams",
    "beams",
    "heat maps",
    "pictures decoded apart",
    "captions",
    "captions beside photos",
    "captions beside vast pictures",
    "photos beside heat maps of vast pictures",
    "translations beside photos",
    "translations beside pages",
)


def ask(port: int, who: str, request: GreedyRequest, timeout_s: float = 60) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout_s, source_address=(who, 0))
    with contextlib.closing(connection):
        headers = {"Accept": "*/*"} | ({"Content-Type": request.content_type} if request.body else {})
        connection.request(request.method, request.path, request.body or None, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()


@dataclass(frozen=True)
class HonestFigures:
    """How the honest one fared: seconds of the answered, sorted, and how many were asked."""

    seconds: list[float]
    asked: int

    @property
    def p95_s(self) -> float:
        return self.seconds[int(0.95 * (len(self.seconds) - 1))] if self.seconds else float("inf")


def honest(port: int, request: GreedyRequest, seconds: float, pause_s: float = 0.05) -> HonestFigures:
    """One after another, with pauses, for so long and at least twenty."""
    end, found, asked = time.monotonic() + seconds, [], 0
    while time.monotonic() < end or asked < 20:
        began = time.monotonic()
        status, body = ask(port, HONEST, request)
        asked += 1
        if status == 200 and b"event: error" not in body:
            found.append(time.monotonic() - began)
        time.sleep(pause_s)
    return HonestFigures(sorted(found), asked)


@contextlib.contextmanager
def beside(port: int, kind: str, seconds: float = 120) -> Iterator[None]:
    """The greedy one is at it; it stops by itself after so long."""
    command = [sys.executable, "-m", "support.greedy", str(port), kind, str(CONNECTIONS), str(seconds)]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[1])
    try:
        time.sleep(2)
        assert process.poll() is None
        yield
    finally:
        process.terminate()
        process.wait(10)


def _insist(port: int, request: GreedyRequest, end: float) -> None:
    while time.monotonic() < end:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if ask(port, GREEDY, request)[0] != 200:
                # A client elsewhere would not spend this machine's processors on being refused.
                time.sleep(_REFUSED_PAUSE_S)


if __name__ == "__main__":
    wanted = requests(sys.argv[2])[0]
    end = time.monotonic() + float(sys.argv[4])
    with ThreadPoolExecutor(int(sys.argv[3])) as pool:
        for _ in range(int(sys.argv[3])):
            pool.submit(_insist, int(sys.argv[1]), wanted, end)
