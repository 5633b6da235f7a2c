"""Through how many of our modules a request goes in the web process, from its first byte to its answer."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import walk_conf
from support.web_app import WebApp, start_web

from gourmet.serving.preflight import free_ports

# The model's own process adds a few; before modules were merged it was 28 and 30 here.
MOST_OF_A_PHOTO = 20
MOST_OF_A_STREAM = 22


@pytest.fixture(scope="module")
def walk_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("walk") / "modules"


@pytest.fixture(scope="module")
def web(triton: Any, walk_file: Path) -> Iterator[WebApp]:
    started = start_web(
        walk_file.with_name("log"),
        free_ports(1)[0],
        triton.http_url,
        config=f"file:{walk_conf.__file__}",
        WALK_FILE=str(walk_file),
        WEB_CONCURRENCY="1",
    )
    yield started
    started.stop()


def modules(walk_file: Path) -> list[str]:
    time.sleep(0.5)  # until the answer's end was noted
    return [Path(line).relative_to(walk_conf.ROOT).as_posix() for line in walk_file.read_text().split("\n")]


def test_a_photo_goes_through_few_modules(web: WebApp, walk_file: Path, sample: bytes) -> None:
    for _ in range(3):  # what is loaded, connected and cached once is so
        assert web.predict(sample).status == 200
        crossed = modules(walk_file)
    assert len(crossed) <= MOST_OF_A_PHOTO, crossed


def test_a_streamed_text_goes_through_few_modules(web: WebApp, walk_file: Path) -> None:
    body = json.dumps({"text": "Привет, мир.", "stream": True})
    for _ in range(3):
        reply = web.request("POST", "/api/v1/translate", body, Content_Type="application/json")
        assert reply.status == 200
        crossed = modules(walk_file)
    assert len(crossed) <= MOST_OF_A_STREAM, crossed
