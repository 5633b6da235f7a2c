"""One HTML page with everything in it, out of a template.

A room's templates lie beside its modules; they extend `reports/report.html` and import what they need of
`reports/pieces.html`.
"""

from __future__ import annotations

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


def render(template: str, **given: Any) -> str:
    """A template of the package filled in, named by its path there, like `measure/bench.html`.

    In names of files, bytes that are not UTF-8 become a mark.
    """
    return _ENVIRONMENT.get_template(template).render(given).encode(errors="replace").decode()
