"""A version that is tried beside the one that serves: who gets it, what is watched, and when it is left.

The model's config says what is tried (`gourmet deploy --canary`), so every process of every app that asks the
server tries the same with the same requests, and so does one that starts later. None of them may change the
server. What each of them watches is its own; where one leaves a canary, the others of its app do.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import os
import statistics
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from app.core.errors import InferenceFailed, ModelNotReady, RefusedByModel, ServingError, TritonTooSlow
from app.core.metrics import DIRECTORY_ENV
from gourmet.client.deadline import Deadline
from gourmet.client.tensors import Inputs
from gourmet.client.triton import Answer, Triton
from gourmet.contracts import Canary, ModelInfo
from gourmet.runtime.turns import Lines, Shares

# The request id of those that ask whether a model answers: nobody's request, and always for the same photo.
PROBE: Final = "readyz"
# How far a share has to be above what is allowed before it is believed, in standard deviations: the watch
# looks after each request, so that chance has many turns.
_SURE: Final = 3.0
_LEAST_COMPARED: Final = 20
_LEAST_FAILED: Final = 5
_MAY_FAIL: Final = 0.02
# Of the last answers of each version: how many are looked at, and from how many on.
_TIMES: Final = 200
_LEAST_TIMES: Final = 50
_MAY_TAKE_S: Final = 0.02  # beside twice as long
# Photos that are compared or wait for it, of a client fewer, so that nobody's keep all others' from it. More
# are dropped: what is compared must keep nobody waiting.
_MOST_COMPARED: Final = 5
_BESIDE_S: Final = 5.0
# What is compared of an answer, and the label by which a difference is counted.
Said = tuple[str, str]
Say = Callable[[ModelInfo, Answer], Said]
Count = Callable[[str, str, str, str, str], object]
_log: Final = logging.getLogger(__name__)


def at_least(count: int, of: int) -> float:
    """The share that `count` of so many shows to be true at least, by Wilson's interval."""
    if not of:
        return 0.0
    share, more = count / of, _SURE**2 / of
    spread = _SURE * math.sqrt(share * (1 - share) / of + more / of / 4)
    return (share + more / 2 - spread) / (1 + more)


class CanaryWatch:
    """What a process saw of one canary, which it leaves for a reason."""

    def __init__(self, model: str, canary: Canary, count: Count) -> None:
        self.canary = canary
        self._model, self._counter = model, count
        self._lock = threading.Lock()
        self._reason = ""
        self._asked = Counter[tuple[str, str]]()
        self._compared = Counter[str]()
        self._times = {each: deque[float](maxlen=_TIMES) for each in (canary.old, canary.new)}
        name = hashlib.sha256(f"{model} {canary.began}".encode()).hexdigest()[:16]
        folder = os.environ.get(DIRECTORY_ENV)  # of all workers of an app, for as long as it runs
        self._file = Path(folder, f"{name}.abandoned") if folder else None

    @property
    def reason(self) -> str:
        """Why it was left, empty while it is tried."""
        if not self._reason and self._file:
            with contextlib.suppress(OSError):
                self._reason = self._file.read_text(encoding="utf-8")
        return self._reason

    def _count(self, what: str, version: str, how: str) -> None:
        self._counter(what, self._model, version, self.canary.began, how)

    def takes(self, request_id: str) -> bool:
        """Whether a request is one of the share: of the same id always, in every process."""
        digest = hashlib.sha256(f"{self.canary.began} {request_id}".encode()).digest()
        is_one = int.from_bytes(digest[:8], "big") < self.canary.share * 2**64
        return is_one and not self.reason

    def asked(self, version: str, outcome: str, seconds: float = 0.0) -> None:
        """`outcome` is answered, failed, or away where a server does not have it, which does not count."""
        self._count("requests", version, outcome)
        with self._lock:
            self._asked[version, outcome] += 1
            if outcome == "answered":
                self._times[version].append(seconds)
        self._judge()

    def compared(self, outcome: str) -> None:
        """`outcome` is same, different, failed or dropped."""
        self._count("compared", self.canary.new, outcome)
        with self._lock:
            self._compared[outcome] += 1
        self._judge()

    def differed(self, old: Said, new: Said, request_id: str) -> None:
        canary = self.canary
        self._count("differences", canary.new, old[1])
        words = "request %s: version %s of %s says %s, version %s %s"
        _log.info(words, request_id, canary.old, self._model, old[0], canary.new, new[0])
        self.compared("different")

    def _judge(self) -> None:
        if self.canary.is_shadow:  # nobody gets its answers, and what is wanted of it are the differences
            return
        with self._lock:
            kind, reason = self._found() or ("", "")
            if not reason or self._reason:
                return
            self._reason = reason
        try:
            if self._file:
                with self._file.open("x", encoding="utf-8") as file:
                    file.write(self._reason)
        except FileExistsError:
            return
        except OSError as exc:
            _log.warning("the other workers are not told of it: %s", exc)
        self._count("abandoned", self.canary.new, kind)
        _log.warning("%s: version %s is tried no more: %s", self._model, self.canary.new, self._reason)

    def _found(self) -> tuple[str, str] | None:
        old, new, tolerance = self.canary.old, self.canary.new, self.canary.tolerance
        failed, failed_before = self._asked[new, "failed"], self._asked[old, "failed"]
        asked = failed + self._asked[new, "answered"]
        usual = failed_before / max(1, failed_before + self._asked[old, "answered"])
        if failed >= _LEAST_FAILED and at_least(failed, asked) > max(_MAY_FAIL, 2 * usual):
            return "errors", f"{failed} of {asked} requests failed, of version {old} {usual:.1%}"
        differ, same = self._compared["different"], self._compared["same"]
        if (total := differ + same) >= _LEAST_COMPARED and at_least(differ, total) > tolerance:
            may = f"{tolerance:.0%} may"
            return "disagreement", f"{differ} of {total} answers differ from version {old}'s, {may}"
        if min(map(len, self._times.values())) >= _LEAST_TIMES:
            before, now = (statistics.median(self._times[each]) for each in (old, new))
            if now > 2 * before + _MAY_TAKE_S:
                return "latency", f"half of its answers take {now:.3f} s, of version {old} {before:.3f} s"
        return None


def by_version(now: ModelInfo, version: str, find: Callable[[str], ModelInfo]) -> ModelInfo:
    """What answered where another version was expected; who is to be asked instead if that is tried only.

    Of several servers one may have a version that others do not have yet, or no more.
    """
    if now.canary or now.version == version:
        return now
    with contextlib.suppress(ServingError):  # gone by now
        there = find(f"{now.name}/{version}")
        canary = Canary.of(there.parameters)
        return now.at(canary.old) if canary and canary.new == version else there
    return now.at(version)


class Canaries:
    """Asks models, and of those of which a version is tried the version whose turn it is."""

    def __init__(self, triton: Triton, count: Count) -> None:
        self._triton, self._count = triton, count
        self._watches: dict[str, CanaryWatch] = {}
        self._lock = threading.Lock()
        self._places, self._waiting = Shares(_MOST_COMPARED), Lines[Callable[[], None]]()
        self._has_come = threading.Condition(self._lock)
        self._worker: threading.Thread | None = None

    def infer(
        self, info: ModelInfo, inputs: Inputs, deadline: Deadline, request_id: str, say: Say
    ) -> tuple[ModelInfo, Answer]:
        """The answer, and the version that was asked for it: that of `info` unless another is tried."""
        canary = info.canary
        if not canary or request_id in ("", PROBE):
            return info, self._triton.infer(info.target, inputs, deadline, request_id)
        watch, new = self._watch(info.name, canary), info.at(canary.new)

        def ask(version: ModelInfo) -> tuple[Answer, Said]:
            began = time.monotonic()
            answer = self._triton.infer(version.target, inputs, deadline, request_id)
            said = say(version, answer)
            watch.asked(version.version, "answered", time.monotonic() - began)
            return answer, said

        is_one = watch.takes(request_id)
        first, other = (new, info) if is_one and not canary.is_shadow else (info, new)
        try:
            answer, said = ask(first)
        except ServingError as exc:
            is_refusal = isinstance(exc, RefusedByModel)
            if isinstance(exc, InferenceFailed | TritonTooSlow) and not is_refusal:
                watch.asked(first.version, "failed")
            if first is info or deadline.passed or exc.status < 500:
                raise
            answer, _ = ask(info)  # so that what is tried costs nobody an answer
            if is_refusal or isinstance(exc, ModelNotReady):  # which was not the photo's fault
                watch.asked(new.version, "failed" if is_refusal else "away")
            return info, answer
        if is_one:
            self._compare(watch, other, said, inputs, request_id, say, deadline.client)
        return first, answer

    def _watch(self, model: str, canary: Canary) -> CanaryWatch:
        with self._lock:
            watch = self._watches.get(model)
            if not watch or watch.canary != canary:
                watch = self._watches[model] = CanaryWatch(model, canary, self._count)
            return watch

    def _compare(
        self,
        watch: CanaryWatch,
        other: ModelInfo,
        said: Said,
        inputs: Inputs,
        request_id: str,
        say: Say,
        client: str,
    ) -> None:
        """Ask the other version beside the requests, where few wait for that already."""

        def compare() -> None:
            try:
                answer = self._triton.infer(other.target, inputs, Deadline(_BESIDE_S), request_id)
                there = say(other, answer)
            except Exception as exc:  # whatever it is, it was nobody's answer
                _log.info("%s was not compared: %s", other.target, exc)
                watch.compared("failed")
                return
            if there[0] == said[0]:
                watch.compared("same")
            elif other.version == watch.canary.old:
                watch.differed(there, said, request_id)
            else:
                watch.differed(said, there, request_id)

        with self._has_come:
            if is_taken := self._places.allows(client):
                self._places.take(client)
                self._waiting.add(client, compare)
                self._has_come.notify()
            if is_taken and self._worker is None:  # in a process that was forked by then
                self._worker = threading.Thread(target=self._work, name="compare versions", daemon=True)
                self._worker.start()
        if not is_taken:
            watch.compared("dropped")

    def _work(self) -> None:
        while True:
            with self._has_come:
                while not (found := self._waiting.next()):
                    self._has_come.wait()
            client, compare = found
            compare()
            with self._has_come:
                self._places.give_back(client)
