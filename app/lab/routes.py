"""The lab's addresses: its page, the figures that the page asks for again and again, and the reports."""

from __future__ import annotations

from typing import Final

from flask import Blueprint, Flask, Response, abort, jsonify, render_template

from app.errors import ServingError
from app.lab.figures import COLUMNS, Ask, Figures, Look, figure, totals
from app.lab.reports import Reports
from app.settings import Settings
from app.texts import TEXTS

_MOST_REPORTS: Final = 20
_FOR_SCRIPTS: Final = "lab.js."
# A report is a page of its own with its styles and pictures in it: it may run nothing and ask for nothing.
_REPORT_POLICY: Final = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; "
    "base-uri 'none'; frame-ancestors 'none'"
)


def init_app(app: Flask, ask: Ask, settings: Settings) -> None:
    """Show the lab, unless the settings turn it off."""
    if settings.lab_page == "on":
        app.jinja_env.filters.update(totals=totals, figure=figure)
        reports = Reports(settings.lab_reports) if settings.lab_reports else None
        app.register_blueprint(_blueprint(Figures(ask), reports, settings))


def _blueprint(figures: Figures, reports: Reports | None, settings: Settings) -> Blueprint:
    routes = Blueprint("lab", __name__)

    def looked() -> tuple[Look | None, ServingError | None]:
        """For the page's main part: what is above it may ask a model, which is no news to show."""
        try:
            return figures.look(), None
        except ServingError as error:
            return None, error

    @routes.get("/lab")
    def page() -> str:
        return render_template(
            "lab.html",
            looked=looked,
            columns=COLUMNS,
            model=settings.food_model,
            reports=reports.latest()[:_MOST_REPORTS] if reports else [],
            folder=settings.lab_reports,
            own_texts={
                key[len(_FOR_SCRIPTS) :]: text for key, text in TEXTS.items() if key.startswith(_FOR_SCRIPTS)
            },
        )

    @routes.get("/lab/figures")
    def now() -> Response:
        response = jsonify(figures.look().as_dict())
        response.headers["Cache-Control"] = "no-store"
        return response

    @routes.get("/lab/reports/<report_id>")
    def report(report_id: str) -> Response:
        data = reports.page(report_id) if reports else None
        if data is None:
            abort(404)
        response = Response(data, content_type="text/html; charset=utf-8")
        response.headers["Content-Security-Policy"] = _REPORT_POLICY
        return response

    return routes
