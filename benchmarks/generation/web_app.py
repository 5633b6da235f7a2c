"""A text streamed by the web app's API, as its page does: the whole way from a visitor to the network."""

from __future__ import annotations

import json
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from generation.asking import DATA, Exchanged, answers, measure_of
from generation.sentences import Sentences
from gourmet.serving.preflight import free_ports
from harness.load import BenchLoad, HttpClient
from harness.run import Contender, Measure
from harness.server import started

WEB: Final = "the web app's API, streamed"
_PATH: Final = "/api/v1/translate"
_DONE, _PIECE = b"event: done", b"event: piece"


def contender(sentences: Sentences) -> Contender:
    @contextmanager
    def start() -> Iterator[Measure]:
        with tempfile.TemporaryDirectory(prefix="gourmet-web-") as home:
            port, *others = free_ports(4)
            command = [str(Path(sysconfig.get_path("scripts"), "gourmet")), "up", "--port", str(port)]
            for option, other in zip(("--http-port", "--grpc-port", "--metrics-port"), others, strict=True):
                command += [option, str(other)]
            texts = sentences.texts
            with started(WEB, command, {}, Path(home), lambda: answers(port, texts[0], _streamed)):
                yield measure_of(WEB, port, sentences, _streamed)

    return Contender(WEB, [BenchLoad(WEB, sentences.system, 1)], start)


def _streamed(client: HttpClient, text: str) -> Exchanged:
    body = json.dumps({"text": text, "stream": True}).encode()
    began, first_ms, event, said, size = time.perf_counter(), 0.0, b"", "", len(body)
    for line in client.lines("POST", _PATH, body):  # to the end, so that the connection can be kept
        size += len(line)
        if line.startswith(b"event: "):
            event = line.rstrip()
            if event == _PIECE and not first_ms:
                first_ms = 1000 * (time.perf_counter() - began)
        elif line.startswith(DATA) and event == _DONE:
            said = str(json.loads(line.removeprefix(DATA))["text"])
    if not said:
        raise ValueError(f"the answer to {text!r} has no end")
    return Exchanged(said, size, first_ms)
