"""Compare a network that generates text with the served one: both answer the same held-out examples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gourmet.client.model_config import as_json
from gourmet.deploying.comparison import Comparison, Measure, comparison_of, weights_of
from gourmet.errors import GourmetError
from gourmet.repository import read_config, versions
from gourmet.runtime.decoding import package
from gourmet.runtime.decoding.answers import GenerationServing, Parts
from gourmet.runtime.instances import available_cpus
from gourmet.tasks.generation.served import whole_answers
from gourmet.tasks.system_parts import Reference
from gourmet.training.task import Tick

# Points that the mean score may lose; more where the examples are so few that chance decides (95 %).
MARGIN: Final = 2.0
_ERRORS: Final = 1.96
_ROWS: Final = 16

Scores = npt.NDArray[np.float64]


@dataclass(frozen=True)
class HeldOut:
    """Examples that no network learned from; `ask` prepares them, and `points` scores the answers."""

    measure: str
    examples: int
    ask: Callable[[Any], Sequence[Parts]]  # of an opened network
    points: Callable[[Sequence[str]], Sequence[float]]  # for each answer, from 0 to 100


@dataclass(frozen=True, eq=False)
class TextCandidate:
    """A network to deploy; all formats of a deployment share it and its scores."""

    model: str  # whose package has the whole network
    serving: GenerationServing
    files: Callable[[], Mapping[str, bytes]]
    weights_sha256: str
    held_out: HeldOut | None
    lack: str  # what to do if there is nothing held out
    _points: dict[str, Scores] = field(default_factory=dict)  # by the weights

    def compare(self, version: Path, tick: Tick) -> Comparison:
        """Compare with the network that a version of any of the system's models is made of."""
        return comparison_of(version, self.weights_sha256, lambda: self._measured(version, tick), self.lack)

    def _measured(self, version: Path, tick: Tick) -> Iterator[Measure]:
        if not (held_out := self.held_out):
            return
        served = self._scores(
            weights_of(version) or str(version), lambda: self._package(version), "what is served", tick
        )
        mine = self._scores(self.weights_sha256, self.files, "the candidate", tick)
        error = float(np.std(mine - served)) / math.sqrt(len(mine))
        margin = max(MARGIN, _ERRORS * error)
        yield Measure(held_out.measure, len(mine), float(served.mean()), float(mine.mean()), margin)

    def _scores(
        self, weights: str, files: Callable[[], Mapping[str, bytes]], whose: str, tick: Tick
    ) -> Scores:
        if weights not in self._points:
            assert self.held_out
            network = self.serving.open(files(), available_cpus())
            parts = self.held_out.ask(network)
            answers = whole_answers(
                network, parts, _ROWS, lambda share, words="": tick(share, f"{whose}: {words}")
            )
            self._points[weights] = np.array(self.held_out.points([answer.text for answer in answers]))
        return self._points[weights]

    def _package(self, version: Path) -> Mapping[str, bytes]:
        """Return the package with the network of `version`, which may be a graph or a reference."""
        model = version.parents[1] / self.model
        same = [model / str(number) for number in reversed(versions(model))]
        same = [path for path in same if path == version or weights_of(path) == weights_of(version) != ""]
        if not same:
            raise GourmetError(f"no version of {self.model} has its weights")
        return package.open_version(same[0], as_json(read_config(model)))


def chrf(references: Sequence[Reference], ask: Callable[[Any], Sequence[Parts]]) -> HeldOut:
    """Texts whose answers are compared with those that people gave."""
    from sacrebleu.metrics.chrf import CHRF

    def points(answers: Sequence[str]) -> list[float]:
        metric = CHRF()
        pairs = zip(answers, references, strict=True)
        return [float(metric.sentence_score(answer, [right.answer]).score) for answer, right in pairs]

    return HeldOut("chrF, mean of the sentences", len(references), ask, points)
