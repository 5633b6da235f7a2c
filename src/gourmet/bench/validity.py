"""Check measurements. A failed check is an error, and its message is the reason."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from gourmet.bench import stats
from gourmet.bench.results import Evidence
from gourmet.errors import GourmetError

_LITTLE_ALLOWED: Final = 0.05
# Cores that the load generator may use: a busy loop reads answers late, which would count as latency.
_CLIENT_CORES_ALLOWED: Final = 0.9
_RATE_REACHED: Final = 0.95
# The mean lateness of sending, as a share of the mean latency, or this much if that is more.
_LAG_ALLOWED: Final = 0.10
_LAG_FLOOR_MS: Final = 1.0
_LATE_ITSELF_S: Final = 0.05
# Requests that fall over the edge of a short measurement prove nothing.
_EDGE: Final = 3
_ANOTHER: Final = "another client asks this model too: stop it and measure again"
_LONGER: Final = "something else runs here; wait, or measure longer windows (--window)"
_ITSELF: Final = "so it would measure itself: ask for less, or use `gourmet perf-analyzer`"


class Untrusted(GourmetError):
    """A misleading figure, which is not reported."""


class WrongAnswers(Untrusted):
    """A model under measurement answers wrongly, so its speed is of no interest."""


class CountsDisagree(Untrusted):
    """Triton's own statistics contradict the client."""


class Disturbed(Untrusted):
    """The measurement was disturbed; measuring again may help."""

    verdict = "too noisy"


class TooShort(Disturbed):
    """Most windows saw no answer; longer ones may."""


class ServerOverrun(Untrusted):
    """Requests come faster than the server answers."""

    verdict = "overrun"


def few_errors(errors: Mapping[str, int], requests: int, allowed: float) -> Evidence:
    """Accept no error, or no more than --allow-errors accepts."""
    failed = sum(errors.values())
    sent = requests + failed
    if failed > allowed * sent:
        worst = max(errors, key=lambda reason: errors[reason])
        raise Untrusted(
            f"{failed} of {sent} requests failed ({failed / sent:.1%}; allowed {allowed:.0%}), most often "
            f"with “{worst}”: no figures are reported; fix it, or accept some with --allow-errors"
        )
    return Evidence("errors", f"{failed} of {sent}", f"at most {allowed:.0%}" if allowed else "none")


def rows_counted(counted: int, sent: int, *, failed: int = 0, others_allowed: float = 0.0) -> Evidence:
    """Compare Triton's count of rows during the load with the rows sent and answered.

    Rows of a request that failed may have been counted or not, depending on where it failed.
    """
    if not sent <= counted <= (sent + failed) * (1 + others_allowed):
        why = (
            "a cache answered the rest: turn off `response_cache` in the model's config.pbtxt"
            if counted < sent
            else _ANOTHER
        )
        raise CountsDisagree(f"Triton counted {counted} rows where {sent} were sent and answered; {why}")
    allowed = f"as sent, or {others_allowed:.0%} more" if others_allowed else "as sent"
    return Evidence("rows counted by Triton", f"{counted} of {sent} sent", allowed)


def littles_law(in_flight: float, product: float, *, keep: bool = False) -> Evidence:
    """Check Little's law: requests in flight = rate × latency."""
    figures = f"rate × latency is {product:.2f} and {in_flight:.2f} requests were in flight"
    off = abs(product / in_flight - 1)
    says = f"{figures}, {off:.0%} apart: {_LONGER}"
    return _undisturbed("Little's law", off, _LITTLE_ALLOWED, says, keep)


def steady(rates: Sequence[float], allowed: float) -> Evidence:
    """Check that the windows agree."""
    off, answered = stats.unsteadiness(rates), ", ".join(f"{rate:.4g}" for rate in rates)
    figures = f"the windows answered {answered} requests a second, {off:.0%} from their median"
    return _undisturbed("windows steady", off, allowed, f"{figures} (allowed {allowed:.0%}): {_LONGER}")


def generator_had_time(client_cores: float, *, keep: bool = False) -> Evidence:
    """Check that our client had spare CPU time."""
    busy = f"the client was busy for {client_cores:.0%} of a core, of which it has one, {_ITSELF}"
    return _undisturbed("client busy", client_cores, _CLIENT_CORES_ALLOWED, busy, keep)


def _undisturbed(name: str, figure: float, allowed: float, says: str, keep: bool = False) -> Evidence:
    if figure > allowed and not keep:
        raise Disturbed(says)
    return Evidence(name, f"{figure:.1%}", f"{allowed:.0%}", says if figure > allowed else "")


def generator_was_punctual(lag_ms: float, mean_ms: float, *, keep: bool = False) -> Evidence:
    """Check, in an open loop, that the client sent each request when it was due."""
    allowed_ms = max(_LAG_FLOOR_MS, _LAG_ALLOWED * mean_ms)
    late = f"the client cannot keep up (it sent {lag_ms:.1f} ms late on average), {_ITSELF}"
    is_late = lag_ms > allowed_ms
    if is_late and not keep:
        raise Disturbed(late)
    return Evidence("sent late, mean", f"{lag_ms:.2f} ms", f"{allowed_ms:.2f} ms", late if is_late else "")


def too_many_in_flight(in_flight: int, lag_s: float) -> Untrusted:
    """Return why too many requests wait: the client is late, or the server is."""
    if lag_s > _LATE_ITSELF_S:
        return Disturbed(f"the client cannot keep up (it is {lag_s:.2f} s behind), {_ITSELF}")
    return ServerOverrun(f"{in_flight} requests wait for their answer and more come: ask for a lower rate")


def server_kept_up(*, answered: int, due: int, seconds: float, keep: bool = False) -> Evidence:
    """Check, in an open loop, that answers come as fast as requests; else latency has no meaning."""
    reason, rate = "", answered / seconds
    if answered < _RATE_REACHED * due - _EDGE:
        reason = (
            f"the server answers {rate:.0f} of {due / seconds:.0f} requests a second, so its queue grows "
            f"without end and the latency with it; ask for {0.9 * rate:.0f}/s at most"
        )
        if not keep:
            raise ServerOverrun(reason)
    return Evidence("answered of those due", f"{answered} of {due}", f"{_RATE_REACHED:.0%}", reason)


def expected_deviation(requests_per_window: float, poisson: bool) -> float:
    """Return how much windows differ by chance alone, as a share."""
    if requests_per_window <= 0:
        return math.inf
    return 3 / math.sqrt(requests_per_window) if poisson else 2 / requests_per_window
