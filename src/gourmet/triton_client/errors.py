"""Errors of a request to Triton, as one tree.

    TritonError
    ├── TritonUnreachable       no server answers at the address
    ├── NoAnswerInTime          the deadline passed first
    ├── NobodyWaits             the client disconnected before the answer came
    ├── NotTriton               the answer is not one of a Triton
    └── TritonRefused           Triton answered with an error, its `reason`
        ├── ApiRestricted       the operation needs Triton's key
        ├── ModelUnavailable    Triton does not serve the model, or not yet
        ├── InvalidRequest      the request is at fault
        ├── ModelBusy           the model's queue is full
        └── ModelFailed         the model could not answer

The command line prints the message of each; the app gives each its HTTP status (app/web/errors.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from gourmet.errors import GourmetError
from gourmet.triton_client.address import ADMIN_ENV, LOOPBACK, Address

# Triton's words for a request that waited in its queue until its deadline.
_TIMED_OUT: Final = "timeout expired"
# Triton's words for a model that it does not have, with any status.
UNKNOWN_MODEL: Final = "unknown model"
_RESTRICTED: Final = " is restricted"


class TritonError(GourmetError):
    """Triton could not be asked, or did not answer as asked."""


class TritonUnreachable(TritonError):
    address = ""

    @classmethod
    def at(cls, address: str, why: object) -> TritonUnreachable:
        here = Address.of(address).host in LOOPBACK
        step = "start one with `gourmet up`" if here else "see that it runs, and that this is its address"
        error = cls(f"no Triton answers at {address} ({why}): {step}")
        error.address = address
        return error


class NoAnswerInTime(TritonError):
    def __init__(self, seconds: float, who: str = "Triton") -> None:
        super().__init__(f"{who} did not answer within {seconds:g} s")


class NobodyWaits(TritonError):
    pass


class NotTriton(TritonError):
    @classmethod
    def at(cls, address: str, why: object) -> NotTriton:
        return cls(f"what answers at {address} is not Triton: {why}")


class TritonRefused(TritonError):
    """Triton answered with an error. `status` is HTTP's, over gRPC too."""

    def __init__(self, reason: str, status: int, message: str = "") -> None:
        super().__init__(message or reason)
        self.reason = reason
        self.status = status


class ApiRestricted(TritonRefused):
    pass


class ModelUnavailable(TritonRefused):
    """The model does not serve. `state` is Triton's own word, such as LOADING; empty if it has none."""

    def __init__(self, model: str, ready: Sequence[str], state: str, reason: str, status: int) -> None:
        self.model, self.ready, self.state = model, tuple(ready), state
        self.is_unloaded = not state or reason == "unloaded"
        details = ", ".join(filter(None, (state or "unknown to Triton", reason.partition("\n")[0])))
        message = f"the model {model!r} is not ready ({details}); ready are {', '.join(ready) or 'none'}"
        message += f"; `gourmet load {model.partition('/')[0]}` loads one" if self.is_unloaded else ""
        super().__init__(reason, status, message)


class InvalidRequest(TritonRefused):
    pass


class ModelBusy(TritonRefused):
    pass


class ModelFailed(TritonRefused):
    pass


def refusal(address: str, status: int, reason: str) -> TritonRefused:
    """Return the error for an answer that is not a success."""
    if _RESTRICTED in reason:
        message = (
            f"Triton at {address} does this for those with its key only: run it as the user who started that "
            f"Triton, here, or set {ADMIN_ENV} to its key"
        )
        return ApiRestricted(reason, status, message)
    return TritonRefused(reason, status)


def of_model(model: str, refused: TritonRefused, seconds: float) -> TritonError:
    """Return the error that a ready model's refusal means."""
    reason, status = refused.reason, refused.status
    if status == HTTPStatus.BAD_REQUEST:
        return InvalidRequest(reason, status)
    if status == HTTPStatus.SERVICE_UNAVAILABLE and _TIMED_OUT in reason:
        return NoAnswerInTime(seconds, model)
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        return ModelBusy(reason, status, f"{model} has too much to do: {reason}")
    return ModelFailed(reason, status, f"{model} could not answer: {reason}")
