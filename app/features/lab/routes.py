"""The lab's routes: its page, the figures and the list of reports that the page polls, and the reports.

The figures are what Triton counted: sums, of which a page that asks again and again makes rates itself.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from flask import Blueprint, Flask, Response, abort, jsonify, render_template

from app.core.errors import ServingError
from app.core.http import marked
from app.core.messages import starting_with, t
from app.core.ttl_cache import TtlCache
from app.features.feature import NavigationEntry, Services
from app.features.lab.reports import Reports, framed
from app.triton.client import Deadline
from gourmet.runtime.statistics import ModelStatistics

_DEADLINE_S: Final = 2.0
# However many look, each process asks Triton twice a second at most.
_AGE_S: Final = 0.5
_NS_PER_MS: Final = 1e6
_MOST_REPORTS: Final = 20
# A report is a whole page with its styles and pictures in it: it may run no script and load nothing.
_REPORT_POLICY: Final = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; "
    "base-uri 'none'; frame-ancestors 'none'"
)


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
            found = services.triton.model_statistics(Deadline(_DEADLINE_S))
        except ServingError as error:
            return error
        ordered = sorted(found, key=lambda each: (each.name, each.version))
        return {"at": round(time.time(), 3), "models": [_model(each) for each in ordered]}

    figures = TtlCache(look, _AGE_S)

    def listed() -> dict[str, Any]:
        latest = reports.latest()[:_MOST_REPORTS] if reports else []
        model = settings.models[services.first_system]
        return {"reports": latest, "folder": settings.lab_reports, "model": model}

    @routes.get("/lab")
    def page() -> str:
        # Looked for the page's main part: what is above it may ask a model, which is no news to show.
        return render_template("lab.html", look=figures.get, own_texts=starting_with("lab.js."), **listed())

    @routes.get("/lab/figures")
    @marked(probe=True)
    def now() -> Response:
        found = figures.get()
        if isinstance(found, ServingError):
            raise found
        return _unstored(jsonify(found))

    @routes.get("/lab/reports")
    @marked(probe=True)
    def report_list() -> Response:
        """The list as it stands on the page; a new report shows there within seconds."""
        return _unstored(Response(render_template("lab_reports.html", **listed())))

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


def _unstored(response: Response) -> Response:
    response.headers["Cache-Control"] = "no-store"
    return response


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
