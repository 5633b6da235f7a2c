"""A running Triton and the version folders of a model."""

from __future__ import annotations

from pathlib import Path

from gourmet.deploying.rollback import rollback
from gourmet.serving.client import ModelUnavailable, triton

_LOADS_WITHIN_S = 180.0


def load(url: str, model: str) -> None:
    """Have Triton serve what is on disk; it answers from the old version until the new one is ready."""
    with triton(url, timeout_s=_LOADS_WITHIN_S) as client:
        client.load_model(model)


def load_or_roll_back(url: str, model: Path) -> None:
    """Like `load`; a version that Triton refuses is withdrawn again, so that disk and server agree."""
    try:
        load(url, model.name)
    except ModelUnavailable:
        rollback(model)
        raise
