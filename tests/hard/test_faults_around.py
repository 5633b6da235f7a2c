"""What comes from around the product: its way to Triton cut and slowed, full disks, a clock that jumps."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import pytest
from hard.faults import suffer
from support.accounting import PhotoLoad, learn
from support.product import Product, running
from support.proxy import Proxy
from support.stack import SAMPLES
from support.table import Keep
from support.triton import MODELS

pytestmark = pytest.mark.timeout(600)
# A /dev/shm and a TMPDIR of its own, that nobody else sees and that may be filled.
_APART = (
    *("unshare", "--mount", "sh", "-c"),
    'mount -t tmpfs -o size=512m none /dev/shm && mount -t tmpfs -o size=128m none "$TMPDIR" && exec "$@"',
    "sh",
)


@pytest.fixture(scope="module")
def proxied(start: Callable[..., Any], triton: Any) -> Iterator[tuple[Any, Proxy]]:
    with Proxy(triton.http_url) as proxy:
        web = start(proxy.address, REQUEST_DEADLINE_S="3")
        yield web, proxy
        web.stop()


@pytest.mark.parametrize(
    ("tried", "delay_s", "refuses", "cuts", "not_ready", "seen"),
    [
        ("connections to Triton cut, again and again for 5 s", 0.0, False, True, False,
         "a request that was under way is asked once more, or refused"),
        ("no connection to Triton for 10 s", 0.0, True, True, True, "503 at once"),
        ("0.2 s added to all that goes to and from Triton", 0.2, False, False, False,
         "the answer, later"),
        ("5 s added to all that goes to and from Triton, for 10 s", 5.0, False, False, True,
         "504 after the deadline, which was three seconds here"),
    ],
)  # fmt: skip
def test_the_way_to_triton(
    proxied: tuple[Any, Proxy],
    table: Keep,
    tried: str,
    delay_s: float,
    refuses: bool,
    cuts: bool,
    not_ready: bool,
    seen: str,
) -> None:
    web, proxy = proxied
    photos = learn(web.url, [path.read_bytes() for path in SAMPLES])

    @contextlib.contextmanager
    def fault(load: PhotoLoad) -> Iterator[None]:
        proxy.delay_s, proxy.refuses = delay_s, refuses
        if cuts:
            for _ in range(1 if refuses else 25):
                proxy.cut()
                load.run_for(0.2)
        try:
            yield
        finally:
            proxy.delay_s, proxy.refuses = 0.0, False

    lasts_s = 10 if not_ready else 5
    suffer(table, tried, web.url, photos, fault, seen, lasts_s=lasts_s, not_ready=not_ready)


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    if subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode:
        pytest.skip("no mounts of its own may be made here (unshare --mount): full disks are not tried")
    with running(MODELS, tmp=tmp_path_factory.mktemp("apart"), within=_APART) as product:
        yield product


def fill(path: Path) -> None:
    """Write until nothing more fits."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(bytes(1 << 20)):
            pass
    with contextlib.suppress(OSError), path.open("ab", buffering=0) as file:
        while file.write(bytes(1 << 10)):
            pass


@pytest.mark.parametrize("what", ["disk", "/dev/shm"])
def test_full(apart: Product, table: Keep, what: str) -> None:
    """A worker that starts meanwhile, too, finds no room."""
    photos = learn(apart.url, [path.read_bytes() for path in SAMPLES])
    inside = f"{apart.up.tmp}" if what == "disk" else what
    filler = Path(f"/proc/{apart.up.process.pid}/root{inside}/filler")

    @contextlib.contextmanager
    def fault(_: PhotoLoad) -> Iterator[None]:
        fill(filler)
        try:
            assert filler.stat().st_size > 1 << 20
            for number in range(60):  # what is counted for the first time wants room too
                path = ("lab", "compare", "digits", "test", "healthz", "api/docs", f"static/{number}")[
                    number % 7
                ]
                with contextlib.suppress(urllib.error.HTTPError):
                    urllib.request.urlopen(f"{apart.url}/{path}", timeout=10).close()
            yield
        finally:
            filler.unlink()

    seen = "nothing: photos go on being answered"
    suffer(table, f"{what} full for 8 s", apart.url, photos, fault, seen, lasts_s=8, product=apart)


@pytest.fixture
def clock(tmp_path: Path) -> tuple[Path, Path]:
    """A library that moves the clock of the process that preloads it, and the file that says by how much."""
    compiler = shutil.which("cc")
    if not compiler:
        pytest.skip("no C compiler here (Debian: apt install gcc): the clock is not moved")
    library, seconds = tmp_path / "clock.so", tmp_path / "seconds"
    seconds.write_text("0\n")
    source = Path(__file__).with_name("moved_clock.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl"], check=True)
    return library, seconds


def test_the_clock_is_moved(
    start: Callable[..., Any], triton: Any, clock: tuple[Path, Path], table: Keep
) -> None:
    """For the web app's processes only: the machine's own clock is everybody's."""
    library, seconds = clock
    web = start(triton.http_url, LD_PRELOAD=str(library), MOVED_CLOCK_FILE=str(seconds))
    photos = learn(web.url, [path.read_bytes() for path in SAMPLES])
    said = []

    @contextlib.contextmanager
    def fault(load: PhotoLoad) -> Iterator[None]:
        for offset_s in (86_400, -86_400):
            seconds.write_text(f"{offset_s}\n")
            load.run_for(4)
            said.append(parsedate_to_datetime(web.request("GET", "/healthz").headers["date"]).timestamp())
        yield

    tried = "the web app's clock a day ahead, then two days back"
    seen = "nothing: deadlines are kept on a clock that cannot jump"
    suffer(table, tried, web.url, photos, fault, seen, lasts_s=0)
    web.stop()
    moved_s = said[0] - said[1]
    assert abs(moved_s - 2 * 86_400) < 60, "the clock was not moved"
