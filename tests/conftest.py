"""Tiers and servers that all tests share; what they import together is in tests/support.

A test's tier is the folder it lies in, so that none can be forgotten. Servers are real, are started
once a run (by pytest-xdist once a worker), and listen on free ports of loopback.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.needs import no_photos
from support.triton import MODELS, RunningTriton, run_triton
from support.web_app import StartWeb, WebApp, start_web

from gourmet.serving.preflight import check_repositories, free_ports, held_back

# Before anything imports onnxruntime, which reports its use over the network unless told not to.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

TIERS = {"unit", "served", "web", "hard", "containers"}
HERE = Path(__file__).parent
# Begun first, so that no worker is left with one of them while the others have nothing more to do.
LONGEST = (
    "web/test_installed_package.py",
    "served/test_deployer.py",
    "web/test_life_of_a_system.py",
    "served/test_lab_notebooks.py",
    "served/test_check.py",
    "served/test_lab_command.py",
    "web/test_up.py",
    "web/test_observability.py",
    "web/test_food_page.py",
    "web/test_demo_pages.py",
    "served/test_elsewhere.py",
    "web/test_text_system.py",
    "served/test_deploy_live.py",
    "served/test_bench.py",
    "served/test_tune.py",
    "served/test_whole_way.py",
    "web/test_generating.py",
    "web/test_pages.py",
    "web/test_many_photos.py",
    "web/test_teach.py",
    "served/test_classification_models.py",
    "served/test_generation_models.py",
    "served/test_onnxruntime_backend.py",
    "served/test_pytorch_backend.py",
    "web/test_faults_short.py",
    "web/test_haproxy.py",
    "web/test_shared_rates.py",
    "served/test_config_command.py",
    "served/test_classify.py",
)


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
    # Imports make millions of objects that stay: looking for garbage among them takes a tenth of the run.
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A run whose tests were all skipped ends as one without tests: not in green."""
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


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    for item in items:
        tier = item.path.relative_to(HERE).parts[0]
        if tier in TIERS:
            item.add_marker(tier)
    if config.getoption("smoke"):
        others = [item for item in items if not item.get_closest_marker("smoke")]
        items[:] = [item for item in items if item.get_closest_marker("smoke")]
        config.hook.pytest_deselected(items=others)
    order = {HERE / name: position for position, name in enumerate(LONGEST)}
    shared = {item.path for item in items if "triton" in getattr(item, "fixturenames", ())}
    items.sort(key=lambda item: (item.path not in shared, order.get(item.path, len(order))))
    # The tests of a file run on one worker. Files that share a Triton, an app and a Chromium are on two.
    groups: dict[Path, str] = {}
    for item in items:
        own = item.path.relative_to(HERE).with_suffix("").as_posix()
        # 1, 2, 2, 1, 1, 2, 2, ...: by turns the longer and the shorter file of two
        turn = f"triton {1 + (len(groups) + 1) // 2 % 2}"
        group = groups.setdefault(item.path, turn if item.path in shared else own)
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session")
def triton() -> Iterator[RunningTriton]:
    """The models of `gourmet up`. Tests that change a config put it back; `load` brings those for study."""
    served = check_repositories([MODELS])
    loaded = served.keys() - held_back(served, ())
    yield from run_triton(MODELS, models=sorted(loaded), response_cache_bytes=64 << 20)


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
