"""The real app under gunicorn, with several workers and threads, in front of a real Triton."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from support.needs import need
from support.pages import Visit
from support.web_app import StartWeb, WebApp

from gourmet.systems.food11 import contract

QUIET = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
    *("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"),
)
expect.set_options(timeout=60_000)
DESKTOP = {"width": 1280, "height": 900}


@pytest.fixture(scope="session")
def corrections(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which `python_web` keeps corrections."""
    return tmp_path_factory.mktemp("corrections")


@pytest.fixture(scope="session")
def python_web(start: StartWeb, triton: Any, corrections: Path) -> WebApp:
    """The app that asks `food_classifier`, which takes the photo as it is."""
    settings = {"FOOD11_MODEL_NAME": "food_classifier", "KEEP_CORRECTIONS": str(corrections)}
    # A heat map asks 246 times, which takes long on a busy machine.
    return start(triton.http_url, EXPLAIN_DEADLINE_S="300", **settings)


@pytest.fixture
def in_parallel() -> Callable[..., list[Any]]:
    def run(task: Callable[[Any], Any], items: list[Any], threads: int = 16) -> list[Any]:
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(task, items))

    return run


@pytest.fixture(scope="session")
def sample() -> bytes:
    return contract.SYSTEM.sample()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A Chromium for the tests of a file. While it is open, no loop of asyncio can be run in this thread."""
    program = shutil.which("google-chrome") or need("chromium")
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=program, args=list(QUIET))


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    """Opens pages, each in a browser of its own; afterwards none may have complained in its console.

    `forgiven`: words of complaints that the test is about, such as a network that is away.
    """
    contexts = []
    complaints: list[str] = []

    def open_page(url: str, *, forgiven: tuple[str, ...] = (), **options: Any) -> Page:
        context = browser.new_context(**{"viewport": DESKTOP, **options})
        context.set_default_timeout(60_000)
        contexts.append(context)
        page = context.new_page()

        def note(kind: str, text: str) -> None:
            # A refused photo is an HTTP error, which Chromium itself writes down.
            known = ("the server responded with a status of 4", *forgiven)
            if kind in ("error", "warning") and not any(words in text for words in known):
                complaints.append(text)

        page.on("console", lambda message: note(message.type, message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture
def open_page(visit: Visit, python_web: WebApp) -> Visit:
    """Opens a page of the app by its path."""

    def open_path(path: str = "/", **options: Any) -> Page:
        return visit(python_web.url + path, **options)

    return open_path
