"""The lab: what Triton does at the moment, and the reports of what was measured.

The figures are what Triton counted: sums, of which a page that asks again and again makes rates itself. Any
program may have written the reports: one is an HTML file, known by its title, whose head may say in a
`description` what it found and in a `date` when. A visitor names an id from the list, never a path.
"""

from __future__ import annotations

import contextlib
import hashlib
import html
import os
import re
import textwrap
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final

from flask import Blueprint, Flask, Response, abort, render_template
from flask.typing import ResponseReturnValue

from app.api.services import NavigationEntry, Services, TtlCache
from app.core.errors import ServingError
from app.core.http import marked
from app.core.messages import starting_with, t
from gourmet.client.config_summary import summary
from gourmet.client.deadline import Deadline
from gourmet.client.errors import TritonError
from gourmet.client.machine_use import ProcessorUse, machine_use
from gourmet.client.statistics import ModelStatistics
from gourmet.runtime.files import open_own

_DEADLINE_S: Final = 2.0
# However many look, each process asks Triton twice a second at most.
_AGE_S: Final = 0.5
# A config is another where somebody changes it, and each is a question of its own.
_CONFIGS_AGE_S: Final = 5.0
_METRICS_WITHIN_S: Final = 1.0
_NS_PER_MS: Final = 1e6
_UNSTORED: Final = {"Cache-Control": "no-store"}
_MOST_REPORTS: Final = 20
# A report is a whole page with its styles and pictures in it: it may run no script and load nothing.
_REPORT_POLICY: Final = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
_DEEPEST: Final = 2  # folders within the folder
_PAGE: Final = "index.html"
_MOST_FILES: Final = 1000
_MOST_BYTES: Final = 20_000_000
_HEAD_BYTES: Final = 4096
_MOST_CHARACTERS: Final = 300
# How long a new report may go unnoticed.
_LIST_AGE_S: Final = 1.0
# These look at a report's first bytes only, and none goes over the same text twice: a `.*` behind what may
# come again and again takes the square of the time.
_TITLE: Final = re.compile(rb"<title[^<>]*>([^<]*(?:<(?!/?title)[^<]*)*)</title>", re.I)
# At the end of ours, which the list shows anyway.
_TIME: Final = re.compile(r" · \d{4}-\d\d-\d\d \d\d:\d\d$")
_SAID: Final = re.compile(r"<meta name=['\"](\w+)['\"] content=(['\"])(.*?)\2", re.I | re.S)
# Where a page's content begins: after the tag of its body, or else after its type.
_BODY: Final = re.compile(rb"<body[^<>]*>", re.I)
_DOCTYPE: Final = re.compile(rb"<!doctype[^<>]*>", re.I)


def add(app: Flask, services: Services) -> Sequence[NavigationEntry]:
    """Show the lab, unless the settings turn it off."""
    settings = services.settings
    if settings.lab_page == "off":
        return ()
    app.jinja_env.filters["figure"] = figure
    reports = Reports(settings.lab_reports) if settings.lab_reports else None
    routes = Blueprint("lab", __name__)

    def look() -> dict[str, Any] | ServingError:
        """All models; `at` is the time of day in seconds, which other processes tell too."""
        try:
            found = services.triton.statistics("", Deadline(_DEADLINE_S))
        except ServingError as error:
            return error
        names[:] = sorted({each.name for each in found})
        ordered = sorted(found, key=lambda each: (each.name, each.version))
        models = [_model(each) for each in ordered]
        return {
            "at": round(time.time(), 3),
            "models": models,
            "configs": configs.get(),
            "machine": [*_server(services.triton.servers()), *_machine(settings.triton_metrics_url)],
        }

    def look_at_configs() -> dict[str, str]:
        """By the names of the models; of what is unloaded meanwhile, or takes too long, none."""
        found: dict[str, str] = {}
        deadline = Deadline(_DEADLINE_S)
        for name in names:
            with contextlib.suppress(TritonError):
                found[name] = summary(services.triton.config(name, deadline))
        return found

    names: list[str] = []  # of the last look
    configs = TtlCache(look_at_configs, _CONFIGS_AGE_S)

    figures = TtlCache(look, _AGE_S)

    def listed() -> dict[str, Any]:
        latest = reports.latest()[:_MOST_REPORTS] if reports else []
        model = settings.models[services.first_system]
        return {"reports": latest, "folder": settings.lab_reports, "model": model}

    @routes.get("/lab")
    def page() -> str:
        return render_template(
            "lab.html", looked=figures.get(), own_texts=starting_with("lab.js."), **listed()
        )

    @routes.get("/lab/figures")
    @marked(probe=True)
    def now() -> ResponseReturnValue:
        found = figures.get()
        if isinstance(found, ServingError):
            raise found
        return found, _UNSTORED

    @routes.get("/lab/sample")
    def load_sample() -> Response:
        """What the page's short measurement sends."""
        sample = services.pictures[services.first_system].sample()
        return Response(sample, content_type="application/octet-stream")

    @routes.get("/lab/reports")
    @marked(probe=True)
    def report_list() -> ResponseReturnValue:
        """The list as it stands on the page; a new report shows there within seconds."""
        return render_template("lab_reports.html", **listed()), _UNSTORED

    @routes.get("/lab/reports/<report_id>")
    def report(report_id: str) -> Response:
        found = reports.page(report_id) if reports else None
        if found is None:
            abort(404)
        about, data = found
        bar = render_template("report_bar.html")
        response = Response(framed(data, about.title, bar), content_type="text/html; charset=utf-8")
        response.headers["Content-Security-Policy"] = _REPORT_POLICY
        return response

    app.register_blueprint(routes)
    return [NavigationEntry("lab.page", t("nav.lab"))]


def figure(value: float) -> str:
    """With three digits or all that are before the point, as the page's script writes it too."""
    return f"{value:.{0 if value >= 100 or value == 0 else 1 if value >= 10 else 2}f}"


def _server(several: Mapping[str, bool]) -> list[str]:
    """Which of several Tritons this is about: figures are those of the first that answers."""
    first = next((each for each, is_asked in several.items() if is_asked), "")
    return [t("lab.server", server=first, count=len(several))] if first else []


def _machine(metrics_url: str) -> list[str]:
    """How busy Triton's machine is, in words; nothing where that is not known."""
    if not metrics_url:
        return []
    try:
        found = machine_use(metrics_url, _METRICS_WITHIN_S)
    except TritonError:
        return []
    used = [
        (t("lab.cpu"), found.cpu),
        *((t("lab.gpu", number=place), gpu) for place, gpu in enumerate(found.gpus)),
    ]
    return [said for name, processor in used if (said := _processor(name, processor))]


def _processor(name: str, used: ProcessorUse) -> str:
    said = []
    if used.busy is not None:
        said.append(t("lab.busy", share=f"{used.busy:.0%}"))
    if used.memory_bytes is not None and used.memory_total_bytes:
        gb = (each / 1e9 for each in (used.memory_bytes, used.memory_total_bytes))
        said.append(t("lab.memory", used=figure(next(gb)), total=figure(next(gb))))
    return f"{name}: {', '.join(said)}" if said else ""


def _model(counted: ModelStatistics) -> dict[str, Any]:
    """Milliseconds are sums over the requests, as the counts are sums since the model was loaded."""
    batches = sorted(counted.executions_by_batch.items())
    return {
        "name": counted.name,
        "version": counted.version,
        "requests": counted.requests,
        "failures": counted.failures,
        "rows": counted.rows,
        "executions": counted.executions,
        "queue_ms": counted.queue_ns / _NS_PER_MS,
        "compute_ms": (counted.input_ns + counted.infer_ns + counted.output_ns) / _NS_PER_MS,
        "batches": [{"rows": rows, "executions": executions} for rows, executions in batches],
    }


@dataclass(frozen=True)
class Report:
    id: str
    path: Path  # to be opened by `open_own` only: it may lead elsewhere by now
    place: str  # the path within the folder of reports, without the name that all pages share
    title: str
    when: datetime
    says: str = ""


class Reports:
    """Those of `folder`, which need not be there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self.latest = TtlCache(self._list, _LIST_AGE_S).get

    def page(self, report_id: str) -> tuple[Report, bytes] | None:
        """The report that the list has under that id, and its HTML."""
        found = next((report for report in self.latest() if report.id == report_id), None)
        if found is None:
            return None
        try:
            with open_own(found.path) as file:
                return found, file.read(_MOST_BYTES)
        except OSError:  # removed since, or something else in its place
            return None

    def _list(self) -> list[Report]:
        found: list[Report] = []
        for path in islice(self._paths(), _MOST_FILES):
            with contextlib.suppress(OSError):  # removed since, or not ours to show
                found.append(_read(path, str(path.relative_to(self._folder))))
        times = Counter(report.title for report in found)
        distinct = [
            replace(report, title=f"{report.title} ({report.place})") if times[report.title] > 1 else report
            for report in found
        ]
        return sorted(distinct, key=lambda report: report.when, reverse=True)

    def _paths(self) -> Iterator[Path]:
        """Names only: what stands under them is known once it is open."""
        with contextlib.suppress(OSError):  # the folder need not be there
            for folder, folders, names, _ in os.fwalk(self._folder):  # which enters no link
                if len(Path(folder).relative_to(self._folder).parts) == _DEEPEST:
                    folders.clear()
                yield from (Path(folder, name) for name in names if name.endswith(".html"))


def framed(data: bytes, title: str, bar: str) -> bytes:
    """A report's HTML with `title`, which no other report has, and a bar above its content."""
    named = f"<title>{html.escape(title)}</title>".encode()
    head, replaced = _TITLE.subn(lambda _: named, data[:_HEAD_BYTES].lstrip(), count=1)
    begins = _BODY.search(head) or _DOCTYPE.match(head)
    at = begins.end() if begins else 0
    return b"".join([head[:at], b"" if replaced else named, bar.encode(), head[at:], data[_HEAD_BYTES:]])


def _read(path: Path, place: str) -> Report:
    with open_own(path) as file:
        about = os.fstat(file.fileno())
        if about.st_size >= _MOST_BYTES:
            raise OSError(f"{path} is too large to be shown")
        head = file.read(_HEAD_BYTES)
        written = datetime.fromtimestamp(about.st_mtime, UTC)
    found = _TITLE.search(head)
    title = _TIME.sub("", found[1].decode(errors="replace")) if found else ""
    metas = _SAID.findall(head.decode(errors="replace"))
    said = {name.lower(): html.unescape(content) for name, _, content in metas}
    with contextlib.suppress(ValueError):
        when = datetime.fromisoformat(said.get("date", ""))
        written = when if when.tzinfo else when.replace(tzinfo=UTC)
    return Report(
        id=hashlib.blake2b(place.encode(errors="surrogateescape"), digest_size=8).hexdigest(),
        path=path,
        place=place.removesuffix(f"/{_PAGE}"),
        title=_short(html.unescape(title)) or place,
        when=written,
        says=_short(said.get("description", "")),
    )


def _short(text: str) -> str:
    """Text on one line, and not too much of it."""
    return textwrap.shorten(text, _MOST_CHARACTERS, placeholder="…")
