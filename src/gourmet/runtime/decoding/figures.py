"""What a generation room does, as metrics of Triton's own.

Triton counts the queue and the compute of a request until it is handed to the model, which is at once: how
many wait here and how fast they are answered it does not know. Each change costs a message to Triton, so they
are told once a second and not where they happen.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Final

from gourmet.runtime.decoding.room import GenerationRoom

_EVERY_S: Final = 1.0
_GAUGES: Final = {"waiting": "Rows that wait for their turn", "at_work": "Rows that are being answered"}
_COUNTERS: Final = {
    "tokens_total": "Tokens of answers; of a search, its steps",
    "begun_total": "Rows that have their first token, without searches",
    "first_token_seconds_total": "Sum of the times from a row's arrival to its first token",
}


class RoomFigures:
    def __init__(self, pb_utils: Any, room: GenerationRoom, labels: Mapping[str, str]) -> None:
        """`labels` are those of no other process: Triton would take the metric of both away with either."""
        family = pb_utils.MetricFamily
        kinds = {family.GAUGE: _GAUGES, family.COUNTER: _COUNTERS}
        self._room = room
        # A metric goes with its family.
        self._families = {
            name: family(name=f"generation_{name}", description=text, kind=kind)
            for kind, texts in kinds.items()
            for name, text in texts.items()
        }
        self._metrics = {name: each.Metric(labels=dict(labels)) for name, each in self._families.items()}
        self._told = dict.fromkeys(self._metrics, 0.0)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._tell, name="figures", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopped.set()
        self._thread.join()
        self._metrics.clear()
        self._families.clear()

    def _tell(self) -> None:
        while not self._stopped.wait(_EVERY_S):
            for name, value in self._room.figures().items():
                if grew := value - self._told[name]:
                    self._metrics[name].increment(grew)
                    self._told[name] = value
