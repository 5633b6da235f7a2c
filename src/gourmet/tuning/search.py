"""The search: a coarse grid in short windows, its best's neighbours, the best for longer, then a duel.

The windows of a search are many, and the best of many noisy figures is partly the luckiest. So what it
finds is measured again against the present config, in turns, and only those turns decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from gourmet.config_change import Config
from gourmet.measure import config_guard, sweep, validity
from gourmet.measure.results import LoadSpec, Point
from gourmet.measure.scenario import merge
from gourmet.measure.sweep import OnStep
from gourmet.measure.task import Addresses, Client, MeasureOptions, Workload
from gourmet.serving.client import ModelUnavailable
from gourmet.tuning.goal import Goal, nearest, p95s
from gourmet.tuning.results import PRESENT, Confirmation, Trial
from gourmet.tuning.space import Candidate, Space

# How many go on: to have their neighbours tried, and to be measured for longer.
BASES: Final = 2
FINALISTS: Final = 3
_FEWEST_TURNS: Final = 3
_STEADINESS: Final = 0.5


class NoDuel(validity.Untrusted):
    """The best and the present config could not be compared; the search before that is worth keeping."""

    def __init__(self, challenger: Trial) -> None:
        super().__init__(
            f"The present config stays: “{challenger.name}” could not be compared with it, since too few "
            "turns could be believed; wait until nothing else runs here, or use a longer --window."
        )
        self.challenger = challenger


@dataclass(frozen=True)
class SearchPlan:
    """What to search and how long to look."""

    goal: Goal
    demands: tuple[LoadSpec, ...]
    effort: MeasureOptions
    turns: int = 5
    # Ours looks at every answer and begins at once; perf_analyzer where a model is too fast for it.
    client: Client = "gourmet"

    @property
    def long(self) -> MeasureOptions:
        """As asked; windows may differ by half, since the noise is judged between turns."""
        steadiness = max(_STEADINESS, self.effort.steadiness)
        return replace(self.effort, steadiness=steadiness, client=self.client)

    @property
    def short(self) -> MeasureOptions:
        """A third of the time, tried once: what is close is looked at for longer."""
        long = self.long
        return replace(long, window_s=long.window_s / 3, warm_up_s=long.warm_up_s / 2, attempts=1)

    @property
    def turn(self) -> MeasureOptions:
        """Half of the time: the turns together are longer than any other measurement."""
        return replace(self.long, window_s=self.long.window_s / 2)


class Search:
    """One search on one model; within `config_guard.restored` only."""

    def __init__(
        self, workload: Workload, target: Addresses, plan: SearchPlan, space: Space, on_step: OnStep
    ) -> None:
        self._workload, self._target, self._plan, self._space = workload, target, plan, space
        self._on_step = on_step
        self._candidates: dict[str, Candidate] = {PRESENT: space.present}
        self.trials: dict[str, Trial] = {PRESENT: Trial(PRESENT, space.running, "coarse")}
        self._serving = PRESENT
        self._done = 0.0

    def run(self) -> tuple[Trial, Confirmation | None]:
        """The best config found and how it did against the present one; None where no config will do."""
        self._begin()
        self._stage("coarse", self._add(self._space.coarse()), self._plan.short, until=0.4)
        self._refuse_nothing()
        bases = [self._candidates[name] for name in self._ranked()[:BASES]]
        fine = self._space.fine(bases, self._candidates.values())
        self._stage("fine", self._add(fine), self._plan.short, until=0.6)
        finalists = [name for name in self._ranked() if name != PRESENT][:FINALISTS]
        self._stage("long", [PRESENT, *finalists], self._plan.long, until=0.8)
        self._refuse_nothing()
        goal = self._plan.goal
        long = [name for name in self._ranked() if self.trials[name].stage == "long"]
        if not any(goal.best(self.trials[name].points) for name in long):
            tried = [self.trials[name] for name in long or self._ranked()]
            return min(tried, key=lambda trial: nearest(trial.points).latency_ms.p95), None
        challengers = [name for name in long if name != PRESENT]
        if not challengers:
            return self.trials[PRESENT], None
        challenger = self.trials[challengers[0]]
        return challenger, self._duel(challenger)

    def _begin(self) -> None:
        """The present config, which also tells whether our client is fast enough for the model."""
        patient = replace(self._plan.short, attempts=self._plan.effort.attempts)
        self._stage("coarse", [PRESENT], patient, until=0.05)
        if self.trials[PRESENT].refused and self._plan.client != self._plan.effort.client:
            self._plan = replace(self._plan, client=self._plan.effort.client)
            self._stage("coarse", [PRESENT], self._plan.short, until=0.1)

    def _add(self, candidates: Sequence[Candidate]) -> list[str]:
        for candidate in candidates:
            self._candidates[str(candidate)] = candidate
        return [str(candidate) for candidate in candidates]

    def _ranked(self) -> list[str]:
        """The best first; what was refused is left out."""
        named = [name for name, trial in self.trials.items() if trial.points]
        # What was measured for longer goes first: short windows flatter the lucky.
        return sorted(
            named,
            key=lambda name: (
                self.trials[name].stage == "long",
                *self._plan.goal.rank(self.trials[name].points),
            ),
            reverse=True,
        )

    def _refuse_nothing(self) -> None:
        if not self._ranked():
            reasons = dict.fromkeys(trial.refused for trial in self.trials.values())
            raise validity.Untrusted("no config could be measured: " + "; ".join(reasons))

    def _stage(self, stage: str, names: Sequence[str], effort: MeasureOptions, until: float) -> None:
        """Try each of these; `until` is the share of the whole search that is done then."""
        begun = self._done
        for place, name in enumerate(names):
            words = f"{stage} {place + 1} of {len(names)}: {name}"

            def on_step(share: float, _words: str, place: int = place, words: str = words) -> None:
                self._on_step(begun + (until - begun) * (place + share) / len(names), words)

            on_step(0.0, "")
            self.trials[name] = self._tried(name, stage, effort, on_step)
        self._done = until

    def _tried(self, name: str, stage: str, effort: MeasureOptions, on_step: OnStep) -> Trial:
        config = self._config(name)
        try:
            self._serve(name, config)
            points, refused = sweep.run(
                self._workload, self._plan.demands, self._target, effort, name, on_step
            )
        except (ModelUnavailable, validity.Untrusted) as exc:
            # A config of ours that does not serve is a result; if what serves now does not, nothing is.
            # A row that Triton counts late, in the measurement after its own, says nothing against a config.
            if name == PRESENT and not isinstance(exc, validity.CountsDisagree):
                raise
            return Trial(name, config, stage, refused=str(exc))
        return Trial(name, config, stage, tuple(points), "; ".join(map(str, refused)))

    def _serve(self, name: str, config: Config) -> None:
        if name != self._serving:
            config_guard.load(self._target, self._workload.model, config)
            self._serving = name

    def _config(self, name: str) -> Config:
        if name == PRESENT:
            return self._space.running
        return self._candidates[name].config(self._space.running)

    def _duel(self, challenger: Trial) -> Confirmation:
        """Both in turns, the first of a turn being the other one each time."""
        goal, turns = self._plan.goal, self._plan.turns
        best = goal.best(challenger.points) or nearest(challenger.points)
        theirs = goal.best(self.trials[PRESENT].points) or best
        sides = {challenger.name: best.demand, PRESENT: theirs.demand}
        seen: dict[str, list[Point]] = {name: [] for name in sides}
        for turn in range(turns):
            for name in list(sides)[:: 1 if turn % 2 else -1]:
                words = f"turn {turn + 1} of {turns} against the present config: {name}"
                self._on_step(self._done + (1 - self._done) * turn / turns, words)
                self._serve(name, self._config(name))
                point = self._turn(name, sides[name])
                seen[name] += [point] if point else []
        if min(len(points) for points in seen.values()) < min(turns, _FEWEST_TURNS):
            raise NoDuel(challenger)
        ours, present = (merge(seen[name]) for name in sides)
        keeps = goal.keeps(ours)
        misses = goal.p95_ms is not None and min(p95s(present), default=0.0) > goal.p95_ms
        return Confirmation(ours, present, goal.gain(ours, present), keeps, keeps and misses)

    def _turn(self, name: str, demand: LoadSpec) -> Point | None:
        try:
            point = sweep.measure(self._workload, demand, self._target, self._plan.turn, name)
        except (validity.Disturbed, validity.CountsDisagree):
            return None
        return point
