"""Through how many of our modules a request goes, from its first byte to its answer, in all processes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import walk, walk_conf
from support.triton import run_triton, some_models
from support.web_app import WebApp, WebReply, start_web

from gourmet.serving.preflight import free_ports

pytestmark = pytest.mark.slow

MOST_OF_A_PHOTO = 22
MOST_OF_A_STREAM = (
    28  # with whether its answer is sure: what a model says of that, and the shape of an answer
)
# What a model's own module ends with here, so that its process is watched as the web's is.
WATCHED = f"""
import pathlib, sys
sys.path.append({str(Path(walk.__file__).parents[1])!r})
from support import walk
walk.begin(pathlib.Path({{folder!r}}))
"""


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebApp]:
    folder = tmp_path_factory.mktemp("walk")
    models = some_models(folder / "models", "food_classifier", "translator", "translator_stream")
    for name in ("food_classifier", "translator_stream"):
        module = models / name / "1" / "model.py"
        module.write_text(module.read_text() + WATCHED.format(folder=str(models / name)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WALK_FILE", str(folder / "modules"))
        for triton in run_triton(models):
            web = start_web(
                folder / "log",
                free_ports(1)[0],
                triton.http_url,
                config=f"file:{walk_conf.__file__}",
                WEB_CONCURRENCY="1",
            )
            yield web
            web.stop()


def crossed(ask: Callable[[], WebReply]) -> list[str]:
    """The modules that a request goes through once what is loaded, connected and cached once is so."""
    for _ in range(3):
        time.sleep(6 * walk.EVERY_S)
        begun = time.time()
        assert ask().status == 200
        time.sleep(6 * walk.EVERY_S)
    return walk.since(begun)


def test_a_photo_goes_through_few_modules(web: WebApp, sample: bytes) -> None:
    found = crossed(lambda: web.predict(sample))
    assert "food_classifier/1/model.py" in found
    assert len(found) <= MOST_OF_A_PHOTO, "\n".join(found)


def test_a_streamed_text_goes_through_few_modules(web: WebApp) -> None:
    body = json.dumps({"text": "Привет, мир.", "stream": True})
    found = crossed(lambda: web.request("POST", "/api/v1/translate", body, Content_Type="application/json"))
    assert "src/gourmet/runtime/decoding/loop.py" in found
    assert len(found) <= MOST_OF_A_STREAM, "\n".join(found)
