"""Why a measurement is not reported: every check that can refuse one, and its sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from gourmet.errors import GourmetError
from gourmet.measure.results import Evidence, Window

LITTLE_ALLOWED: Final = 0.05
# Of one core: a loop that is nearly always busy answers late, and the lateness would pass for latency.
CLIENT_CORES_ALLOWED: Final = 0.9
RATE_REACHED: Final = 0.95
# Triton is looked at when perf_analyzer speaks, a moment before or after its windows.
RATE_AGREES: Final = 0.15
# The mean lateness of sending, as a share of the mean latency, or this much if that is more.
LAG_ALLOWED: Final = 0.10
LAG_FLOOR_MS: Final = 1.0
_LATE_ITSELF_S: Final = 0.05
# Requests that fall over the edge of a short measurement prove nothing.
_EDGE: Final = 3


class Untrusted(GourmetError):
    """A figure that would mislead; nothing is reported."""


class WrongAnswers(Untrusted):
    """A model under measurement answers wrongly, so its speed is of no interest."""


class CountsDisagree(Untrusted):
    """Triton's own statistics contradict the client."""


class Disturbed(Untrusted):
    """The measurement was disturbed; measuring again may help."""

    in_short = "too noisy"


class ServerOverrun(Untrusted):
    """Requests come faster than the server answers."""

    in_short = "overrun"


def few_errors(errors: Mapping[str, int], requests: int, allowed: float) -> Evidence:
    """No error, or no more than --allow-errors accepts."""
    failed = sum(errors.values())
    asked = requests + failed
    if failed > allowed * asked:
        worst = max(errors, key=lambda reason: errors[reason])
        raise Untrusted(
            f"{failed} of {asked} requests failed ({failed / asked:.1%}; allowed {allowed:.0%}), "
            f"most often with “{worst}”: no figures are reported; fix it, or accept some with --allow-errors"
        )
    return Evidence("errors", f"{failed} of {asked}", f"at most {allowed:.0%}" if allowed else "none")


def rows_counted(counted: int, sent: int, *, failed: int = 0, others_allowed: float = 0.0) -> Evidence:
    """Triton's count of rows in the whole of the load, against what was sent and answered.

    Rows of a request that failed may have been counted or not, depending on where it failed.
    """
    if not sent <= counted <= (sent + failed) * (1 + others_allowed):
        why = (
            "a cache answered the rest: turn it off with `gourmet config MODEL --no-response-cache`"
            if counted < sent
            else "another client asks this model too: stop it and measure again"
        )
        raise CountsDisagree(f"Triton counted {counted} rows where {sent} were sent and answered; {why}")
    allowed = f"as sent, or {others_allowed:.0%} more" if others_allowed else "as sent"
    return Evidence("rows counted by Triton", f"{counted} of {sent} sent", allowed)


def rate_counted(counted_per_s: float, claimed_per_s: float, in_flight: float, requests: int) -> Evidence:
    """The rows per second by Triton's count against those that the client claims."""
    off = abs(counted_per_s - claimed_per_s) / claimed_per_s
    allowed = RATE_AGREES + 3 * in_flight / requests
    if off > allowed:
        raise Disturbed(
            f"Triton counted {counted_per_s:.4g} rows a second where the client claims {claimed_per_s:.4g}: "
            "another client asks this model too, or rows are counted that were not run"
        )
    return Evidence("rows per second by Triton", f"{off:.1%} off", f"{allowed:.0%}")


def littles_law(in_flight: float, product: float) -> Evidence:
    """Requests in flight against rate × latency, which must be the same thing."""
    off = abs(product - in_flight) / in_flight
    if off > LITTLE_ALLOWED:
        raise Disturbed(
            f"rate × latency is {product:.2f} and {in_flight:.2f} requests were in flight, {off:.0%} apart "
            f"where Little's law allows {LITTLE_ALLOWED:.0%}: requests were miscounted, or the client spent "
            "its time elsewhere; measure longer windows on a quieter machine"
        )
    return Evidence("Little's law", f"{off:.1%} off", f"{LITTLE_ALLOWED:.0%}")


def generator_had_time(client_cores: float) -> Evidence:
    """The client of ours must have had time to spare."""
    if client_cores > CLIENT_CORES_ALLOWED:
        raise Disturbed(
            f"the client was busy for {client_cores:.0%} of a core, of which it has one, so it measured "
            "itself: ask for less, or use perf_analyzer (--client perf-analyzer)"
        )
    return Evidence("client busy", f"{client_cores:.0%} of a core", f"{CLIENT_CORES_ALLOWED:.0%}")


def generator_was_punctual(lag_ms: float, mean_ms: float) -> Evidence:
    """In an open loop the client must have sent what was due, when it was due."""
    allowed_ms = max(LAG_FLOOR_MS, LAG_ALLOWED * mean_ms)
    if lag_ms > allowed_ms:
        raise _cannot_keep_up(f"it sent {lag_ms:.1f} ms late on average, where {allowed_ms:.1f} ms may be")
    return Evidence("sent late, mean", f"{lag_ms:.2f} ms", f"{allowed_ms:.2f} ms")


def too_many_in_flight(in_flight: int, lag_s: float) -> Untrusted:
    """Why so many requests wait: because the client is late itself, or because the server is."""
    if lag_s > _LATE_ITSELF_S:
        return _cannot_keep_up(f"it is {lag_s:.2f} s behind")
    return ServerOverrun(f"{in_flight} requests wait for their answer and more come: ask for a lower rate")


def _cannot_keep_up(how: str) -> Disturbed:
    return Disturbed(
        f"the client cannot keep up ({how}), so it would measure itself: ask for a lower rate, "
        "or measure on a quieter machine"
    )


def server_kept_up(*, answered: int, due: int, seconds: float) -> Evidence:
    """In an open loop the answers must come as fast as the requests, or latency has no meaning."""
    if answered < RATE_REACHED * due - _EDGE:
        raise ServerOverrun(
            f"the server answers {answered / seconds:.0f} of {due / seconds:.0f} requests a second, so "
            "its queue grows without end and the latency with it; "
            f"ask for {0.9 * answered / seconds:.0f}/s at most"
        )
    return Evidence("answered of those due", f"{answered} of {due}", f"{RATE_REACHED:.0%}")


def steady(windows: tuple[Window, ...], off: float, allowed: float) -> Evidence:
    """The windows must tell the same story."""
    if off > allowed:
        rates = ", ".join(f"{window.requests_per_s:.4g}" for window in windows)
        raise Disturbed(
            f"the windows answered {rates} requests a second, {off:.0%} from their median where "
            f"{allowed:.0%} is allowed: something else runs here; wait, or measure longer windows (--window)"
        )
    return Evidence("windows steady", f"{off:.1%} from the median", f"{allowed:.0%}")


def expected_deviation(requests_per_window: float, poisson: bool) -> float:
    """By how much windows differ from the way requests fall into them alone, as a share."""
    if requests_per_window <= 0:
        return math.inf
    return 3 / math.sqrt(requests_per_window) if poisson else 2 / requests_per_window
