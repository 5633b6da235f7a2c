"""The lab's routes: its page, the figures and the list of reports that the page polls, and the reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from flask import Blueprint, Flask, Response, abort, jsonify, render_template

from app.core.errors import ServingError
from app.core.http import marked
from app.core.messages import starting_with, t
from app.features.feature import NavigationEntry, Services
from app.features.lab.live_stats import COLUMNS, Figures, Look, totals
from app.features.lab.reports import Reports, framed

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
    app.jinja_env.filters["totals"] = totals
    reports = Reports(settings.lab_reports) if settings.lab_reports else None
    figures = Figures(services.triton.model_statistics)
    routes = Blueprint("lab", __name__)

    def looked() -> tuple[Look | None, ServingError | None]:
        """For the page's main part: what is above it may ask a model, which is no news to show."""
        try:
            return figures.look(), None
        except ServingError as error:
            return None, error

    def listed() -> dict[str, Any]:
        latest = reports.latest()[:_MOST_REPORTS] if reports else []
        model = settings.models[services.first_system]
        return {"reports": latest, "folder": settings.lab_reports, "model": model}

    @routes.get("/lab")
    def page() -> str:
        return render_template(
            "lab.html",
            looked=looked,
            columns=COLUMNS,
            own_texts=starting_with("lab.js."),
            **listed(),
        )

    @routes.get("/lab/figures")
    @marked(probe=True)
    def now() -> Response:
        response = jsonify(figures.look().as_dict())
        response.headers["Cache-Control"] = "no-store"
        return response

    @routes.get("/lab/reports")
    @marked(probe=True)
    def report_list() -> Response:
        """The list as it stands on the page; a new report shows there within seconds."""
        response = Response(render_template("lab_reports.html", **listed()))
        response.headers["Cache-Control"] = "no-store"
        return response

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
