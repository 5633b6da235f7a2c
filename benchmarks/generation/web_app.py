"""A text streamed by the web app's API, as its page does: the whole way from a visitor to the network."""

from __future__ import annotations

import json
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from generation.sentences import Sentences, same_as_alone
from generation.served import FIRST_PIECE_MS
from gourmet.serving.preflight import free_ports
from harness.load import BenchLoad, BenchWindow, HttpClient, http_loop
from harness.run import Contender, Measure
from harness.server import started

WEB: Final = "the web app's API, streamed"
_PATH: Final = "/api/v1/translate"
_DONE, _PIECE, _DATA = b"event: done", b"event: piece", b"data: "


def contender(sentences: Sentences) -> Contender:
    @contextmanager
    def start() -> Iterator[Measure]:
        with tempfile.TemporaryDirectory(prefix="gourmet-web-") as home:
            port, *others = free_ports(4)
            command = [str(Path(sysconfig.get_path("scripts"), "gourmet")), "up", "--port", str(port)]
            for option, other in zip(("--http-port", "--grpc-port", "--metrics-port"), others, strict=True):
                command += [option, str(other)]
            texts = sentences.texts
            with started(WEB, command, {}, Path(home), lambda: _alone(port, texts[:1])):
                alone = _alone(port, texts)
                agreement = sentences.agreement(WEB, alone)

                def measure(load: BenchLoad) -> BenchWindow:
                    first_ms: list[float] = []

                    def ask(client: HttpClient, number: int) -> int:
                        place = number % len(texts)
                        said, waited_ms = _streamed(client, texts[place])
                        same_as_alone(WEB, said, alone[place])
                        first_ms.append(waited_ms)
                        return 1

                    found = http_loop(load, partial(_client, port), ask, sentences.options)
                    figures = {"requests": 1.0, FIRST_PIECE_MS: float(np.median(first_ms)), **agreement}
                    return replace(found, figures=figures)

                yield measure

    return Contender(WEB, [BenchLoad(WEB, sentences.system, 1)], start)


def _client(port: int) -> HttpClient:
    return HttpClient(port, {"Content-Type": "application/json"})


def _alone(port: int, texts: Sequence[str]) -> list[str]:
    with closing(_client(port)) as client:
        return [_streamed(client, text)[0] for text in texts]


def _streamed(client: HttpClient, text: str) -> tuple[str, float]:
    """The whole answer, and after how many milliseconds its first piece came."""
    body = json.dumps({"text": text, "stream": True}).encode()
    began, first_ms, event, said = time.perf_counter(), 0.0, b"", ""
    for line in client.lines("POST", _PATH, body):  # to the end, so that the connection can be kept
        if line.startswith(b"event: "):
            event = line.rstrip()
            if event == _PIECE and not first_ms:
                first_ms = 1000 * (time.perf_counter() - began)
        elif line.startswith(_DATA) and event == _DONE:
            said = str(json.loads(line.removeprefix(_DATA))["text"])
    if not said:
        raise ValueError(f"the answer to {text!r} has no end")
    return said, first_ms
