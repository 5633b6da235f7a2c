"""The files of a new system and of its model, as templates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

_FILES: Final = Environment(  # noqa: S701  what is written is Python, Markdown and text protobuf, not HTML
    loader=FileSystemLoader(Path(__file__).parent),
    trim_blocks=True,
    keep_trailing_newline=True,
    undefined=StrictUndefined,
)
_FILES.filters["quoted"] = lambda value: json.dumps(value, ensure_ascii=False)


def filled_in(name: str, **given: Any) -> str:
    """The file `name`."""
    return _FILES.get_template(f"{name}.jinja").render(given)
