"""A served model is asked its system's sample, and what it says is looked at."""

from __future__ import annotations

from gourmet.client.errors import InvalidRequest
from gourmet.client.triton import Triton
from gourmet.contracts import System
from gourmet.errors import GourmetError


class BadSample(GourmetError):
    """A system's sample cannot be read or used, so it says nothing about the model."""


def ask_sample(triton: Triton, system: System, model: str) -> str:
    """The answer in a sentence; raise unless the model really answers."""
    info = triton.describe(model)
    try:
        outputs = triton.generate(info, system.request_inputs(system.sample(), info))
    except GourmetError as exc:
        if isinstance(exc, InvalidRequest):  # the sample is all that was sent
            raise _unusable(system, exc) from exc
        raise
    except Exception as exc:  # whatever the system's own code raises
        raise _unusable(system, exc) from exc
    return system.describe_answer(outputs, info)


def _unusable(system: System, exc: Exception) -> BadSample:
    return BadSample(f"the sample of {system.name} cannot be used ({exc}): correct the system's folder")
