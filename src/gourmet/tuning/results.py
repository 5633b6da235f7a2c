"""What a search came to, as values and as the JSON that is saved."""

from __future__ import annotations

import json
import textwrap
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from gourmet.config_change import Config, as_pbtxt
from gourmet.measure.results import Bench, Estimate, Point
from gourmet.tuning.goal import TuneRequest

SCHEMA: Final = "gourmet-tune/1"
PRESENT: Final = "present"

Verdict = Literal["better", "no better", "undecided", "out of reach"]


@dataclass(frozen=True)
class Trial:
    """A config that was tried, with the points of its longest measurement."""

    name: str
    config: Config
    stage: str
    points: tuple[Point, ...] = ()
    refused: str = ""


@dataclass(frozen=True)
class Confirmation:
    """The best of the search against the present config, in turns, measured again.

    `gain` is how many times better, with its interval: of the throughput, or of the p95 turned over.
    `only_ours` tells that the challenger keeps the limit and the present config does not.
    """

    ours: Point
    theirs: Point
    gain: Estimate
    keeps: bool
    only_ours: bool = False

    @property
    def won(self) -> bool:
        beaten = self.gain.low is not None and self.gain.low > 1
        return self.keeps and (self.only_ours or beaten)


@dataclass(frozen=True)
class Tuning:
    """A whole search; `bench` holds the points that the pages of `gourmet bench` can draw."""

    wish: TuneRequest
    searched: tuple[str, ...]
    trials: tuple[Trial, ...]
    best: str
    duel: Confirmation | None
    verdict: Verdict
    sentence: str
    bench: Bench
    applied: bool = False
    schema: str = field(default=SCHEMA)

    def trial(self, name: str) -> Trial:
        return next(trial for trial in self.trials if trial.name == name)

    @property
    def recommended(self) -> Trial | None:
        """The config to serve: the best if it won, else the present one; none where no config will do."""
        if self.verdict == "out of reach":
            return None
        return self.trial(self.best if self.verdict == "better" else PRESENT)

    def pbtxt(self) -> str:
        """The recommended config as a file, with the reason over it; nothing where there is none."""
        if not (chosen := self.recommended):
            return ""
        said = "".join(f"# {line}\n" for line in textwrap.wrap(self.sentence, 110))
        found = f"# Found by: {self.bench.command}, {self.bench.when}\n"
        # A server's answer less what it filled in itself and another Triton would fill in otherwise.
        filled_in = {"runtime", *(["platform"] if chosen.config.get("backend") else [])}
        config = {name: value for name, value in chosen.config.items() if name not in filled_in}
        groups = config.get("instance_group", [])
        config["instance_group"] = [{key: group[key] for key in group if key != "name"} for group in groups]
        return said + found + as_pbtxt(config)


def as_json(tuning: Tuning) -> str:
    """The saved form, the points of the search once, under its trials."""
    data: dict[str, Any] = asdict(tuning)
    wish, about = data.pop("wish"), data.pop("bench")
    goal = {"kind": wish["kind"], "p95_ms": wish["p95_ms"], "heaviest": tuning.wish.heaviest}
    data = {"model": wish["model"], "goal": goal, **data}
    data |= {name: about[name] for name in ("command", "when", "machine", "data")}
    data["recommended"] = tuning.recommended.name if tuning.recommended else None
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"
