"""CTranslate2 behind FastAPI: started, asked and stopped."""

from __future__ import annotations

import itertools
import json
import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import aiohttp
import numpy as np

from generation.windows import Key, SentenceWindow, foreign
from gourmet.errors import GourmetError
from gourmet.measure.async_client import Load
from gourmet.measure.results import LoadSpec
from gourmet.measure.task import MeasureOptions
from gourmet.measure.transports import Answer, RawReply, Request, RequestFailed
from gourmet.measure.validity import WrongAnswers
from gourmet.serving.preflight import free_ports
from gourmet.serving.processes import Child
from gourmet.serving.waiting import wait_until
from gourmet.systems.translator.contract import TRANSLATION
from gourmet.training.task import Tick
from peers import venv
from peers.processes import CpuUsed, spent

REQUIREMENTS: Final = Path(__file__).with_name("requirements.txt")
_SERVERS: Final = Path(__file__).resolve().parent / "servers"
_STARTS_WITHIN_S: Final = 60.0
_STOPS_WITHIN_S: Final = 5.0


def programs(tick: Tick) -> Path:
    """Those of its own virtual environment, which is made the first time."""
    return venv.ensure(lambda words: tick(0.0, words), REQUIREMENTS)


@contextmanager
def serving(found: Path, model: Path, tokenizer: Path, *, threads: int, workers: int) -> Iterator[str]:
    """Its address, host:port; so many translations at a time, each on so many threads."""
    (port,) = free_ports(1)
    env = {
        **os.environ,
        "MODEL": str(model.resolve()),
        "TOKENIZER": str(tokenizer.resolve()),
        "THREADS": str(threads),
        "WORKERS": str(workers),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [str(found / "uvicorn"), "ctranslate2_app:app", "--host", "127.0.0.1", "--no-access-log"]
    lines: deque[str] = deque(maxlen=5)
    child = Child([*command, "--port", str(port)], env=env, cwd=_SERVERS, on_line=lines.append)
    try:
        url = f"http://127.0.0.1:{port}/openapi.json"
        wait_until(lambda: _answers(child, url, lines), _STARTS_WITHIN_S, "no answer of FastAPI")
        yield f"127.0.0.1:{port}"
    finally:
        child.stop(_STOPS_WITHIN_S)


def _answers(child: Child, url: str, lines: deque[str]) -> bool:
    if child.exit_status() is not None:
        raise GourmetError(f"CTranslate2 behind FastAPI ended; its last lines: {' | '.join(lines)}")
    return child.answers("FastAPI", url)


class FastApi:
    """Sentences to the server at `address`; fulfils gourmet.measure.transports.Wire."""

    def __init__(self, address: str, texts: Sequence[str]) -> None:
        self._url, self._texts = f"http://{address}/translate", texts

    @cached_property
    def _session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    def request(self, which: tuple[int, ...]) -> Request:
        return Request(which, json.dumps({"text": self._texts[which[0]]}).encode())

    async def send(self, request: Request) -> RawReply:
        async with self._session.post(
            self._url, data=request.body, headers={"Content-Type": "application/json"}
        ) as reply:
            body = await reply.read()
        if reply.status != 200:
            raise RequestFailed(f"HTTP {reply.status}: {body[:200].decode(errors='replace')}")
        return RawReply(reply.headers, body, transferred=len(request.body) + len(body))

    def read(self, reply: RawReply) -> Answer:
        text: Any = json.loads(reply.body)["translation"]
        return {TRANSLATION: np.array([[text.encode()]], np.object_)}

    async def close(self) -> None:
        await self._session.close()


def window(
    key: Key, address: str, texts: Sequence[str], right: Sequence[str], effort: MeasureOptions
) -> SentenceWindow:
    """Every answer checked."""
    wire = FastApi(address, texts)
    looks: list[CpuUsed] = []

    def check(request: Request, reply: RawReply) -> None:
        found = wire.read(reply)[TRANSLATION].item().decode()
        if found != (wanted := right[request.rows[0]]):
            raise WrongAnswers(f"CTranslate2 answered {found!r} where it answered {wanted!r} alone")

    asked = itertools.cycle([wire.request((row,)) for row in range(len(texts))])
    demand = LoadSpec("", key.level)
    traffic = Load(
        wire,
        asked,
        demand,
        check,
        effort.warm_up_s,
        effort.measure_s,
        lambda: looks.append(spent({}, os.getpid())),
    ).run()
    if traffic.errors:
        raise WrongAnswers(f"CTranslate2 behind FastAPI failed: {next(iter(traffic.errors))}")
    due, _, done = traffic.arrays()
    seconds = traffic.ended - traffic.began
    figures = {"requests": 1.0, "bytes": traffic.transferred / len(traffic.times)}
    return SentenceWindow.of(
        key, (done - due)[traffic.holds(done)], seconds, foreign(looks, seconds), **figures
    )
