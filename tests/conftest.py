"""Tiers and servers that all tests share; what they import together is in tests/support.

A test's tier is the folder it lies in, so that none can be forgotten. Servers are real, are started
once a run (by pytest-xdist once a worker), and listen on free ports of loopback.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.needs import no_photos
from support.triton import MODELS, RunningTriton, run_triton
from support.web_app import StartWeb, WebApp, start_web

from gourmet.stack.preflight import check_repositories, free_ports, held_back

# Before anything imports onnxruntime, which reports its use over the network unless told not to.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

TIERS = {"unit", "served", "web", "containers"}
HERE = Path(__file__).parent
# Begun first, so that no worker is left with one of them while the others have nothing more to do.
LONGEST = (
    "web/test_installed_package.py",
    "served/test_whole_way.py",
    "web/test_life_of_a_system.py",
    "web/test_demo_pages.py",
    "served/test_check.py",
    "web/test_pages.py",
    "web/test_food_page.py",
    "served/test_classification_models.py",
    "served/test_lab.py",
    "served/test_generation_models.py",
    "web/test_api.py",
    "web/test_generating.py",
    "served/test_tables.py",
    "web/test_many_photos.py",
    "web/test_api_docs.py",
    "web/test_up.py",
    "web/test_observability.py",
    "served/test_elsewhere.py",
    "served/test_onnxruntime_backend.py",
    "served/test_deploy_live.py",
    "web/test_gunicorn.py",
    "served/test_locks.py",
    "served/test_load.py",
    "served/test_bench.py",
    "served/test_tune.py",
    "web/test_text_system.py",
    "web/test_proxy.py",
    "web/test_teach.py",
    "unit/test_gate.py",
    "unit/test_bring_a_translator.py",
    "served/test_pytorch_backend.py",
    "web/test_faults.py",
    "web/test_haproxy.py",
    "web/test_shared_rates.py",
    "unit/test_deployer.py",
    "unit/test_doctor.py",
    "unit/test_decoders.py",
    "unit/test_captioner.py",
    "unit/test_new.py",
    "unit/test_pictures.py",
    "unit/test_generation.py",
    "unit/test_bench.py",
)
# Files with a function that takes the fixture `triton`, the app in front of it or one of its pages.
SHARES_TRITON = re.compile(r"def \w+\([^)]*\b(?:triton|python_web|open_page)\b(?:: |,|\))")


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "only the few tests that show in a minute whether the product works at all"
    parser.addoption("--smoke", action="store_true", help=text)


def pytest_configure(config: pytest.Config) -> None:
    if {"", str(HERE.parent)} & set(sys.path):
        pytest.exit(
            "the checkout is on sys.path, where its folder triton/ passes for torch's compiler: "
            "run `make test`, or `pytest` and not `python -m pytest`",
            returncode=4,
        )
    # Verbs find the stacks that run here by their files in this folder: neither those that somebody works
    # with nor those of the worker beside this one are meant.
    folder = tempfile.mkdtemp(prefix="gourmet-tests-")
    os.environ["XDG_RUNTIME_DIR"] = folder
    os.environ["GOURMET_HOME"] = f"{folder}/home"  # nor are somebody's own systems and models looked at
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    # A shell's background job ignores Ctrl-C, and so would the programs that tests start and interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Imports make millions of objects that stay: looking for garbage among them takes a tenth of the run.
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A run whose tests were all skipped ends as one without tests: not in green."""
    if session.config.option.collectonly:
        return
    reports = getattr(session.config.pluginmanager.get_plugin("terminalreporter"), "stats", {})
    if reports.get("skipped") and not {"passed", "failed", "error", "xfailed"} & reports.keys():
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


@pytest.fixture(scope="module", autouse=True)
def _late_warnings() -> Iterator[None]:
    """Have what the tests of a file forgot to close complain at its end, not during other tests."""
    yield
    gc.collect()
    gc.freeze()  # what stays is not looked at again


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files that have no test of a mark that is asked for are not even imported."""
    marks = "smoke" if config.getoption("smoke") else config.getoption("markexpr")
    if marks in ("smoke", "slow", "nightly") and collection_path.match("test_*.py"):
        return f"mark.{marks}" not in collection_path.read_text() or None
    return None


def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    for item in items:
        tier = item.path.relative_to(HERE).parts[0]
        if tier in TIERS:
            item.add_marker(tier)
    if config.getoption("smoke"):
        others = [item for item in items if not item.get_closest_marker("smoke")]
        items[:] = [item for item in items if item.get_closest_marker("smoke")]
        config.hook.pytest_deselected(items=others)
    order, sharing = {HERE / name: position for position, name in enumerate(LONGEST)}, _sharing()
    items.sort(key=lambda item: (item.path not in sharing, order.get(item.path, len(order))))


@cache
def _sharing() -> dict[Path, str]:
    """The files that share a Triton, an app and a Chromium, with the one of two groups that each is in."""
    first = [HERE / name for name in LONGEST]
    paths = dict.fromkeys(
        [*first, *sorted(HERE.glob("served/test_*.py")), *sorted(HERE.glob("web/test_*.py"))]
    )
    sharing = [path for path in paths if SHARES_TRITON.search(path.read_text())]
    # 1, 2, 2, 1, 1, 2, 2, ...: by turns the longer and the shorter file of two
    return {path: f"triton {1 + (number + 1) // 2 % 2}" for number, path in enumerate(sharing)}


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Have each file on one worker, and those that share a Triton on two workers.

    pytest-xdist's own `--dist loadgroup` finds no groups with pytest 9.2, whose items have no `_nodeid`.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByServers(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return _sharing().get(HERE.parent / file, file)

    return ByServers(config, log) if config.getoption("dist") == "loadgroup" else None


@pytest.fixture(scope="session")
def triton() -> Iterator[RunningTriton]:
    """The models of `gourmet up`, and the captioner of its page.

    Tests that change a config put it back; `load` brings other models for study.
    """
    served = check_repositories([MODELS])
    loaded = {*served.keys() - held_back(served, ()), "captioner", "captioner_stream"}
    yield from run_triton(MODELS, models=sorted(loaded))


@pytest.fixture(scope="session")
def lab_triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningTriton]:
    """A Triton with an empty, writable repository: tests put models there and load them by name."""
    yield from run_triton(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartWeb]:
    """Starts web apps that are stopped at the end of the run."""
    running: list[WebApp] = []

    def start_one(triton_url: str, **settings: str) -> WebApp:
        log = tmp_path_factory.mktemp("web") / "gunicorn.log"
        running.append(start_web(log, free_ports(1)[0], triton_url, **settings))
        return running[-1]

    yield start_one
    for web in running:
        web.process.send_signal(signal.SIGTERM)  # to all before waiting for any
    for web in running:
        web.stop()


@pytest.fixture(scope="session")
def food_photos() -> Path:
    """The folder of real food photos, for tests that say more with them than with drawn ones."""
    folder = Path(os.environ.get("GOURMET_FOOD11", HERE.parents[1] / "shared" / "food11"))
    if not (folder / "test.zip").is_file():
        no_photos(folder)
    return folder


@pytest.fixture
def models_copy(tmp_path: Path) -> Path:
    """A copy of the product's model repository that a test may break."""
    return Path(shutil.copytree(MODELS, tmp_path / "models"))
