"""What one request may cost at most, of any format on any route, and which costs most for each byte sent."""

from __future__ import annotations

import base64
import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pytest
from support import expensive, hostile, hostile_rows
from support.cost import Cost, MeasuredProcesses
from support.table import Keep, TableRow
from support.web_app import WebApp, form

from gourmet.runtime.instances import available_cpus
from gourmet.systems.digits.contract import SYSTEM as DIGITS

# The budget of a request in all processes: of one photo, and of what asks for more on purpose, which
# is every served model, sixteen photos, or a model 246 times.
CPU_S: Final = 4.0
MB: Final = 400.0
HEAT_MAP: Final = "/api/v1/explain"
MORE: Final = ("/compare", HEAT_MAP)
MORE_CPU_S: Final = 8.0
# Two instances of the Python model, each with a decoder for each processor, of as much as one may take.
MORE_MB: Final = 2 * available_cpus() * MB
WALL_S: Final = 11.0
SEARCH_S: Final = float(os.environ.get("FUZZ_EXPENSIVE_S", "60")) / 4
JPEG: Final = {"Content-Type": "image/jpeg"}
JSON: Final = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class ExpensiveRequest:
    path: str
    body: bytes
    headers: Mapping[str, str]

    def send(self, web: WebApp) -> int:
        headers = {"Accept": "application/json", **self.headers}
        return web.request("POST", self.path, self.body, **headers).status


def as_form(path: str, photo: bytes) -> ExpensiveRequest:
    return ExpensiveRequest(path, *form(photo))


def as_json(photo: bytes, count: int) -> ExpensiveRequest:
    images = [base64.b64encode(photo).decode()] * count
    return ExpensiveRequest("/api/v1/classify", json.dumps({"images": images}).encode(), JSON)


def of_photo(photo: bytes) -> Iterator[ExpensiveRequest]:
    """Every way that a photo can take."""
    for path in ("/predict", "/compare", "/digits"):
        yield as_form(path, photo)
    for path in ("/api/v1/classify", "/api/v1/digits", HEAT_MAP):
        yield ExpensiveRequest(path, photo, JPEG)
    sixteen = as_json(photo, 16)
    yield sixteen if len(sixteen.body) < 30_000_000 else as_json(photo, 1)


def others() -> Iterator[tuple[str, ExpensiveRequest]]:
    """Bodies that cost something before any photo is found in them."""
    tiny = b'{"images": ["a"' + b',"a"' * 7_500_000 + b"]}"
    yield "json of tiny strings", ExpensiveRequest("/api/v1/classify", tiny, JSON)
    yield "json, deep", ExpensiveRequest("/api/v1/classify", b"[" * 10_000_000, JSON)
    escaped = b'{"images": ["' + b"\\u0041" * 5_000_000 + b'"]}'
    yield "json, one string", ExpensiveRequest("/api/v1/classify", escaped, JSON)
    yield (
        "json, a number",
        ExpensiveRequest("/api/v1/classify", b'{"images": [' + b"9" * 20_000_000 + b"]}", JSON),
    )
    parts = b"--b\r\nContent-Disposition: form-data; name=a\r\n\r\nx\r\n" * 200_000 + b"--b--\r\n"
    multipart = "multipart/form-data; boundary="
    yield "form of many parts", ExpensiveRequest("/predict", parts, {"Content-Type": f"{multipart}b"})
    dashes = b"--b\r\nContent-Disposition: form-data; name=file; filename=a\r\n\r\n" + b"\r\n--b" * 2_500_000
    yield "form of ends", ExpensiveRequest("/predict", dashes, {"Content-Type": f"{multipart}bb"})
    fields = {"Content-Type": "application/x-www-form-urlencoded"}
    yield "urlencoded", ExpensiveRequest("/predict", b"a=%41&" * 2_500_000, fields)


@dataclass(frozen=True)
class MeasuredRequest:
    name: str
    request: ExpensiveRequest
    status: int
    cost: Cost

    @property
    def ms_per_kb(self) -> float:
        return self.cost.cpu_s * 1e6 / (len(self.request.body) + 500)

    @property
    def is_more(self) -> bool:
        return self.request.path in MORE or self.request.headers == JSON

    @property
    def is_dear(self) -> bool:
        cpu_s, mb = (MORE_CPU_S, MORE_MB) if self.is_more else (CPU_S, MB)
        return self.cost.cpu_s > cpu_s or self.cost.peak_mb > mb or self.cost.wall_s > WALL_S

    def __str__(self) -> str:
        return f"{self.name} to {self.request.path} ({len(self.request.body):,} bytes, {self.status})"


class Meter:
    def __init__(self, web: WebApp, stack: MeasuredProcesses) -> None:
        self._web = web
        self._stack = stack
        self.found: list[MeasuredRequest] = []

    def measure(self, name: str, request: ExpensiveRequest) -> MeasuredRequest:
        statuses: list[int] = []
        cost = self._stack.cost(lambda: statuses.append(request.send(self._web)))
        self.found.append(MeasuredRequest(name, request, statuses[0], cost))
        return self.found[-1]

    def search(
        self,
        build: Callable[[expensive.FileRecipe], bytes],
        ask: Callable[[bytes], ExpensiveRequest] = lambda photo: as_form("/predict", photo),
    ) -> bytes:
        """The most expensive of a kind that a short search finds."""
        end = time.monotonic() + SEARCH_S
        in_time = itertools.takewhile(lambda _: time.monotonic() < end, itertools.count())

        def cost(data: bytes) -> float:
            return self.measure(f"{build.__name__} by search", ask(data)).cost.cpu_s

        return expensive.most_expensive(build, cost, in_time, seed=int(time.time())).data


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("model", ["food_classifier", "food_classifier_onnx"])
def test_the_most_expensive_requests(start: Callable[..., Any], triton: Any, table: Keep, model: str) -> None:
    web = start(triton.http_url, FOOD11_MODEL_NAME=model, WEB_CONCURRENCY="1")
    meter = Meter(web, MeasuredProcesses(web.process.pid, hostile_rows.server(triton.http_url).pid))
    for request in of_photo(DIGITS.sample()):
        request.send(web)  # what is started when it is first needed is there from here on
    photos = {**hostile.bombs(), "arithmetic jpeg": hostile.arithmetic_jpeg()}
    photos["tiff of an arithmetic jpeg"] = hostile.tiff_of(hostile.arithmetic_jpeg())
    photos |= {f"{build.__name__} by search": meter.search(build) for build in expensive.BUILDERS}
    for name, photo in photos.items():
        for request in of_photo(photo):
            meter.measure(name, request)
    meter.search(expensive.json_call, lambda body: ExpensiveRequest("/api/v1/classify", body, JSON))
    for name, request in others():
        meter.measure(name, request)

    found = meter.found
    of_one = [each for each in found if not each.is_more]
    of_more = [each for each in found if each.is_more]
    most_expensive, most_of_more = (max(each, key=lambda one: one.cost.cpu_s) for each in (of_one, of_more))
    per_byte = max(of_one, key=lambda one: one.ms_per_kb)
    statuses = Counter(str(one.status) for one in found)
    broken = {str(one): 1 for one in found if one.status in (500, 502)}
    too_expensive = [one for one in found if one.is_dear]
    table(
        TableRow(
            tried=f"the most expensive requests on every route, each alone, to {model}",
            requests=len(found),
            answered=statuses["200"],
            refused={status: n for status, n in statuses.items() if status not in ("200", "500", "502")},
            wrong=broken | {f"too expensive: {one}: {one.cost}": 1 for one in too_expensive},
            seen=f"an answer or the reason; of one photo the most expensive was {most_expensive}, "
            f"for its bytes {per_byte}; of what asks for more {most_of_more}",
            survived=not (broken or too_expensive),
            figures={
                "processor seconds of one photo at most": round(most_expensive.cost.cpu_s, 2),
                "of what asks for more": round(most_of_more.cost.cpu_s, 2),
                "processor milliseconds per KB of one photo at most": round(per_byte.ms_per_kb),
                "megabytes of one photo at most": round(max(one.cost.peak_mb for one in of_one)),
                "of all": round(max(one.cost.peak_mb for one in found)),
                "seconds until the answer at most": round(max(one.cost.wall_s for one in found), 1),
            },
        )
    )
