"""Clients that ask the app all the time and look at every answer, and what became of what they asked."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from support.repeating import Repeating
from support.web_app import Site

from gourmet.systems.food11.contract import SYSTEM

CLIENTS = 16
PHOTOS = list(SYSTEM.examples(12, 5, (96, 80)))


@dataclass
class LoadOutcome:
    """What became of requests of a while."""

    statuses: Counter[int] = field(default_factory=Counter)
    wrong: int = 0


class Clients(Repeating):
    """They ask the app all the time and look at every answer."""

    def __init__(self, site: Site, labels: list[str], count: int = CLIENTS) -> None:
        super().__init__(self._ask, count)
        self.outcome = LoadOutcome()
        self._site, self._labels = site, labels

    def _ask(self, client: int, turn: int) -> None:
        place = (client + turn) % len(PHOTOS)
        reply = self._site.predict(PHOTOS[place])
        self.outcome.statuses[reply.status] += 1
        if reply.status == 200:
            self.outcome.wrong += reply.json["label"] != self._labels[place]


def labels_of(site: Site) -> list[str]:
    return [site.predict(photo).json["label"] for photo in PHOTOS]
