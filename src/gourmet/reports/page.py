"""Render a self-contained HTML page from a template.

A package's templates lie beside its modules. They extend `reports/report.html` and import macros from
`reports/pieces.html`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from gourmet.reports.table import number_columns

_ENVIRONMENT: Final = Environment(
    loader=FileSystemLoader(Path(__file__).parents[1]),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
)
# Defaults of variables that not every page sets.
_ENVIRONMENT.globals.update(when="", command="", style="", says="")
_ENVIRONMENT.filters["number_columns"] = number_columns


def render(template: str, **variables: Any) -> str:
    """Render a template, named by its path in the package `gourmet`, such as `bench/bench.html`.

    Bytes of file names that are not UTF-8 become a question mark.
    """
    return _ENVIRONMENT.get_template(template).render(variables).encode(errors="replace").decode()
