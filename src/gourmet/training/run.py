"""What a run's folder knows about itself, for the verbs that come after training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from gourmet.errors import UsageError
from gourmet.runtime.files import written_aside

RUN: Final = "run.json"


def write_run(folder: Path, facts: dict[str, Any]) -> None:
    """Note how a run was started."""
    with written_aside(folder / RUN) as aside:
        aside.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def data_of(weights: Path) -> Path:
    """Where the photos lie that `weights` were trained on."""
    path = weights.parent / RUN
    try:
        return Path(_facts(path)["data"])
    except (OSError, ValueError, KeyError) as exc:
        raise UsageError(f"{path} does not say where the data are: name them with --data") from exc


def beginning_of(folder: Path) -> str | None:
    """The weights that the run in `folder` began with; None where it began with none, or nobody noted it."""
    try:
        begun: str | None = _facts(folder / RUN).get("init")
    except (OSError, ValueError):
        return None
    return begun


def _facts(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))
