"""What `gourmet evaluate` leaves beside the weights, and `gourmet deploy` ships with the model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gourmet.errors import GourmetError
from gourmet.runtime.files import written_aside
from gourmet.runtime.manifest import sha256

EVALUATION: Final = "evaluation.json"


@dataclass(frozen=True)
class Calibration:
    """What evaluation found out about a network's confidence; as it is, where nobody evaluated it."""

    temperature: float = 1.0
    threshold: float = 0.0


class NotEvaluated(GourmetError):
    """Weights whose temperature and threshold nobody knows."""


def write_evaluation(weights: Path, calibration: Calibration, accuracy: dict[str, Any]) -> Path:
    """Note what was measured of `weights`, beside them."""
    path = weights.parent / EVALUATION
    found = {"weights": {"file": weights.name, "sha256": sha256(weights)}, "calibration": vars(calibration)}
    with written_aside(path) as aside:
        aside.write_text(json.dumps({**found, "accuracy": accuracy}, indent=2) + "\n", encoding="utf-8")
    return path


def read_evaluation(weights: Path) -> tuple[Calibration, dict[str, Any]]:
    """The calibration and accuracy of `weights`; raises NotEvaluated for weights that were not measured."""
    path = weights.parent / EVALUATION
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        digest, calibration = found["weights"]["sha256"], Calibration(**found["calibration"])
    except FileNotFoundError as exc:
        raise NotEvaluated(f"{path} does not exist: run `gourmet evaluate` on {weights} first") from exc
    except (ValueError, KeyError, TypeError) as exc:
        raise NotEvaluated(
            f"{path} cannot be read ({exc!r}): run `gourmet evaluate` on {weights} again"
        ) from exc
    if digest != sha256(weights):
        raise NotEvaluated(f"{path} is about other weights than {weights}: run `gourmet evaluate` on these")
    return calibration, found["accuracy"]
