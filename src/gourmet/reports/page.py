"""One HTML page with everything in it: the frame of every report, which templates extend, and its pieces.

A room's templates lie beside its modules. They extend `reports/report.html` and import what they need of
`reports/pieces.html`; `pieces.table` and the like are functions of the same pieces.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

_ENVIRONMENT: Final = Environment(
    loader=FileSystemLoader(Path(__file__).parents[1]),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
)
# What not every page says.
_ENVIRONMENT.globals.update(when="", command="", style="", says="")
pieces: Final[Any] = _ENVIRONMENT.get_template("reports/pieces.html").module


def render(template: str, **given: Any) -> str:
    """A template of the package filled in, named by its path there, like `measure/bench.html`."""
    return _ENVIRONMENT.get_template(template).render(given)


def document(title: str, parts: Iterable[str], **more: str) -> str:
    """A whole page of `parts`; what it `says` stands in a list of reports."""
    return render("reports/report.html", title=title, parts=parts, **more)
