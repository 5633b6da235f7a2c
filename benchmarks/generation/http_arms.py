"""Measure servers of JSON over HTTP: the web app's streamed API, and CTranslate2 behind FastAPI.

Every answer is compared with the one that the server gives to the same text alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from generation import ctranslate2_model
from generation.sentences import Sentences, same_as_alone
from gourmet.measure.task import ask_each
from gourmet.measure.transports import Http, RawReply, Request
from gourmet.serving.preflight import free_ports
from gourmet.systems.translator.contract import SYSTEM
from harness.run import Contender, Measure, gourmet_up, programs, started
from harness.windows import BenchLoad, window

WEB: Final = "the web app's API, streamed"
FASTAPI: Final = "CTranslate2 behind FastAPI"
# Of its numbers: all bits, which say what the network says, and eight, which are faster.
FORMS: Final = ("float32", "int8")
_SERVERS: Final = Path(__file__).resolve().parent / "servers"
_REQUIREMENTS: Final = Path(__file__).with_name("requirements.txt")
_LEVELS: Final = (1, 8, 16)


@contextmanager
def _measure_of(
    arm: str,
    sentences: Sentences,
    command: Sequence[str],
    env: Mapping[str, str],
    cwd: Path,
    http: Callable[[], Http],
    options: Mapping[str, bool],
    read: Callable[[bytes], str],
) -> Iterator[Measure]:
    """Start a server and yield the function that measures it.

    A request has a text and the `options`; `read` returns the text of an answer.
    """
    requests = [
        Request(
            (number,), json.dumps({"text": text, **options}).encode(), {"Content-Type": "application/json"}
        )
        for number, text in enumerate(sentences.texts)
    ]
    with started(arm, command, env, cwd, lambda: ask_each(http(), requests[:1])):
        alone = [read(reply.body) for reply in ask_each(http(), requests)]
        agreement = sentences.agreement(arm, alone)

        def check(request: Request, reply: RawReply) -> None:
            same_as_alone(arm, read(reply.body), alone[request.rows[0]])

        yield lambda load: window(load, http(), requests, check, sentences.options, figures=agreement)


def web_app(sentences: Sentences) -> Contender:
    """Return the contender of the whole way from the page to the network."""

    @contextmanager
    def start() -> Iterator[Measure]:
        with TemporaryDirectory(prefix="gourmet-web-") as home:
            (port,) = free_ports(1)
            http = partial(Http, f"127.0.0.1:{port}", "/api/v1/translate", streams=True)
            command, options = gourmet_up(port), {"stream": True}
            with _measure_of(WEB, sentences, command, {}, Path(home), http, options, _last_event) as measure:
                yield measure

    return Contender(WEB, [BenchLoad(WEB, SYSTEM.name, 1)], start)


def _last_event(events: bytes) -> str:
    _, done, data = events.rpartition(b"event: done\ndata: ")
    if not done:
        raise ValueError("the answer has no end")
    return str(json.loads(data)["text"])


def _translation(body: bytes) -> str:
    return str(json.loads(body)["translation"])


def behind_fastapi(sentences: Sentences, form: str, workers: int, threads: int) -> Contender:
    """Return the contender with CTranslate2."""
    arm = f"{FASTAPI}, {form}, {workers} × {threads}"

    @contextmanager
    def start() -> Iterator[Measure]:
        with TemporaryDirectory(prefix="gourmet-ctranslate2-") as name:
            ctranslate2_model.convert(sentences.checkpoint, Path(name), form)
            (port,) = free_ports(1)
            command = [str(programs(_REQUIREMENTS) / "uvicorn"), "ctranslate2_app:app", "--host", "127.0.0.1"]
            command += ["--no-access-log", "--port", str(port)]
            env = {
                "MODEL": name,
                "TOKENIZER": str(sentences.checkpoint.folder.resolve()),
                "THREADS": str(threads),
                "WORKERS": str(workers),
                "PYTHONDONTWRITEBYTECODE": "1",
            }
            http = partial(Http, f"127.0.0.1:{port}", "/translate")
            with _measure_of(arm, sentences, command, env, _SERVERS, http, {}, _translation) as measure:
                yield measure

    return Contender(arm, [BenchLoad(arm, SYSTEM.name, level) for level in _LEVELS], start)
