"""A fault under steady load: what became of every request, and what the app said of itself meanwhile."""

from __future__ import annotations

import contextlib
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from support.accounting import ANSWERED, KnownPhoto, PhotoLoad
from support.product import Product
from support.repeating import Repeating
from support.table import Keep

PER_S: Final = 6.0
GOAL_S: Final = 10.0
BEFORE_S: Final = 3.0
AFTER_S: Final = 4.0
GIVE_UP_S: Final = 60.0
# Instances of a model that was loaded again have this long to finish what they had begun.
SETTLES_S: Final = 30.0
# How long the app may go on saying that it is ready: what it found is remembered for a second, and
# a Triton that does not answer is waited for.
READY_LAGS_S: Final = 7.0


@dataclass(frozen=True)
class ProbeReply:
    at: float  # when it was said, not when it was asked for
    path: str
    status: int  # 0: nothing


class Probe(Repeating):
    """Asks /healthz and /readyz several times a second, as a balancer would."""

    def __init__(self, url: str, every_s: float = 0.25) -> None:
        super().__init__(lambda thread, _: self._ask(("/healthz", "/readyz")[thread]), 2, every_s)
        self._url = url
        self.said: list[ProbeReply] = []

    def statuses(self, path: str, begin: float = 0.0, end: float = float("inf")) -> set[int]:
        return {reply.status for reply in self.said if reply.path == path and begin <= reply.at < end}

    def _ask(self, path: str) -> None:
        status = 0
        try:
            with urllib.request.urlopen(self._url + path, timeout=20) as answer:
                status = answer.status
        except urllib.error.HTTPError as exc:
            with exc:
                status = exc.code
        except OSError:
            pass
        self.said.append(ProbeReply(time.monotonic(), path, status))


Brings = Callable[[PhotoLoad], contextlib.AbstractContextManager[object]]


def suffer(
    table: Keep,
    tried: str,
    url: str,
    photos: Sequence[KnownPhoto],
    fault: Brings,
    seen: str,
    *,
    lasts_s: float = 5.0,
    not_ready: bool = False,
    product: Product | None = None,
    per_s: float = PER_S,
    times: int = 1,
    alive: Collection[int] = (200,),
    asks_again: bool = False,
) -> None:
    """Bring `fault` about for `lasts_s` under load, end it, and go on until all is well again.

    Leaves a row of the table, in which `seen` is what a user sees, and insists on the goals.

    `not_ready`: nothing can be answered meanwhile, and /readyz must say so. `product`: whose
    processes must afterwards be those that they were. `times`: how often `fault` does it.
    `alive`: what /healthz may say, 0 for nothing. `asks_again`: whether clients send a request whose
    connection was reset once more.
    """
    before = product.counts() if product else {}
    client = PhotoLoad(url, photos, per_s, silent_after_s=40, asks_again=asks_again)
    with Probe(url) as probe, client as load:
        load.run_for(BEFORE_S)
        began = time.monotonic()
        with fault(load):
            load.run_for(lasts_s)
            ended = time.monotonic()
        if not_ready:  # what ended in no time shows a little later
            with contextlib.suppress(AssertionError):
                load.run_until(lambda: 503 in probe.statuses("/readyz", began), 15)
        well = _well(load, probe, ended)
    account = load.account()
    recovery_s = account.recovery_s(ended)
    held = {
        f"recovery within {GOAL_S:g} s": recovery_s is not None and recovery_s <= GOAL_S,
        "/healthz is right throughout": probe.statuses("/healthz") <= set(alive),
        "/readyz is right before and afterwards": probe.statuses("/readyz", 0, began - 1) == {200}
        and well is not None
        and probe.statuses("/readyz", well) == {200},
    }
    if not_ready:
        held["/readyz says so meanwhile"] = 503 in probe.statuses("/readyz", began)
        lagged = probe.statuses("/readyz", began + READY_LAGS_S, ended)
        held["/readyz does not say ready for long"] = 200 not in lagged
    if product:
        held["no process is left behind"] = _as_before(product, before)
    again = {"reset and sent again": account.asked_again} if account.asked_again else None
    table(account.row(tried, seen=seen, held=held, times=times, recovery_s=recovery_s, figures=again))


def _as_before(product: Product, before: Mapping[str, int]) -> bool:
    end = time.monotonic() + SETTLES_S
    while not (same := product.counts() == before and not product.strays()) and time.monotonic() < end:
        time.sleep(0.5)
    return same


def _well(load: PhotoLoad, probe: Probe, since: float) -> float | None:
    """Since when everything is answered and /readyz is 200, for AFTER_S by then; None if it never is."""
    while time.monotonic() < since + GIVE_UP_S:
        load.run_for(0.5)
        attempts = load.account().attempts
        bad = [a.sent for a in attempts if a.outcome != ANSWERED]
        bad += [reply.at for reply in list(probe.said) if reply.path == "/readyz" and reply.status != 200]
        at = max([*bad, since]) + 0.01
        # Those that still wait for an answer are in no account yet, so the answers must be there.
        if sum(a.sent > at for a in attempts) > 0.8 * PER_S * AFTER_S and time.monotonic() - at > AFTER_S:
            return at
    return None
