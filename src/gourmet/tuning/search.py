"""The search: a coarse grid in short windows, its best's neighbours, the best for longer, then a duel.

The windows of a search are many, and the best of many noisy figures is partly the luckiest. So what it
finds is measured anew against the present config, in turns, and only those turns decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from gourmet.bench import live_config, sweep, trust
from gourmet.bench.measure import measure
from gourmet.bench.results import Demand, Point
from gourmet.bench.scenario import merge
from gourmet.bench.sweep import OnStep
from gourmet.bench.task import Client, Effort, Subject, Target
from gourmet.config_change import Config
from gourmet.serving.asking import ModelUnavailable
from gourmet.tuning.goal import Goal, nearest, p95s
from gourmet.tuning.results import PRESENT, Duel, Trial
from gourmet.tuning.space import Candidate, Space

# How many go on: to have their neighbours tried, and to be measured for longer.
BASES: Final = 2
FINALISTS: Final = 3
_FEWEST_TURNS: Final = 3
_STEADINESS: Final = 0.5
# Seconds that a load of a config takes, and perf_analyzer's start, for the time that remains.
_LOADING_S: Final = 2.0
_STARTING_S: Final = 1.0


class NoDuel(trust.Untrusted):
    """The best and the present config could not be compared; the search before that is worth keeping."""

    def __init__(self, challenger: Trial) -> None:
        super().__init__(
            f"The present config stays: “{challenger.name}” could not be compared with it, since too few "
            "turns could be believed; wait until nothing else runs here, or use a longer --window."
        )
        self.challenger = challenger


@dataclass(frozen=True)
class Plan:
    """What to search and how long to look."""

    goal: Goal
    demands: tuple[Demand, ...]
    effort: Effort
    turns: int = 5
    # Ours looks at every answer and begins at once; perf_analyzer where a model is too fast for it.
    client: Client = "gourmet"

    @property
    def long(self) -> Effort:
        """As asked; windows may differ by half, since the noise is judged between turns."""
        steadiness = max(_STEADINESS, self.effort.steadiness)
        return replace(self.effort, steadiness=steadiness, client=self.client)

    @property
    def short(self) -> Effort:
        """A third of the time, tried once: what is close is looked at for longer."""
        long = self.long
        return replace(long, window_s=long.window_s / 3, warm_up_s=long.warm_up_s / 2, attempts=1)

    @property
    def turn(self) -> Effort:
        """Half of the time: the turns together are longer than any other measurement."""
        return replace(self.long, window_s=self.long.window_s / 2)

    def seconds(self, effort: Effort, points: int) -> float:
        """About how long a config takes."""
        return _LOADING_S + points * (effort.warm_up_s + effort.measure_s + _STARTING_S)


class Search:
    """One search on one model; the server must be in the hands of `live_config.restored`."""

    def __init__(self, subject: Subject, target: Target, plan: Plan, space: Space, on_step: OnStep) -> None:
        self._subject, self._target, self._plan, self._space = subject, target, plan, space
        self._on_step = on_step
        self._candidates: dict[str, Candidate] = {PRESENT: space.present}
        self.trials: dict[str, Trial] = {PRESENT: Trial(PRESENT, space.running, "coarse")}
        self._coarse = space.coarse()
        self._serving = PRESENT
        self._done_s = 0.0
        self.seconds = self._expected_s()

    def run(self) -> tuple[Trial, Duel | None]:
        """The best config found and how it did against the present one; None where no config will do."""
        self._begin()
        self._stage("coarse", self._add(self._coarse), self._plan.short)
        self._refuse_nothing()
        bases = [self._candidates[name] for name in self._ranked()[:BASES]]
        fine = self._space.fine(bases, self._candidates.values())
        self._stage("fine", self._add(fine), self._plan.short)
        finalists = [name for name in self._ranked() if name != PRESENT][:FINALISTS]
        self._stage("long", [PRESENT, *finalists], self._plan.long)
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
        self._stage("coarse", [PRESENT], patient)
        if self.trials[PRESENT].refused and self._plan.client != self._plan.effort.client:
            self._plan = replace(self._plan, client=self._plan.effort.client)
            self._stage("coarse", [PRESENT], self._plan.short)

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
            raise trust.Untrusted("no config could be measured: " + "; ".join(reasons))

    def _stage(self, stage: str, names: Sequence[str], effort: Effort) -> None:
        for place, name in enumerate(names):
            words = f"{stage} {place + 1} of {len(names)}: {name}"
            self.trials[name] = self._tried(name, stage, effort, words)

    def _tried(self, name: str, stage: str, effort: Effort, words: str) -> Trial:
        config = self._config(name)
        takes_s = self._plan.seconds(effort, len(self._plan.demands))

        def on_step(share: float, _words: str) -> None:
            self._on_step((self._done_s + share * takes_s) / self.seconds, words)

        on_step(0.0, "")
        try:
            self._serve(name, config)
            points, refused = sweep.run(
                self._subject, self._plan.demands, self._target, effort, name, on_step
            )
        except (ModelUnavailable, trust.Untrusted) as exc:
            # A config of ours that does not serve is a result; if what serves now does not, nothing is.
            # A row that Triton counts late, in the measurement after its own, says nothing against a config.
            if name == PRESENT and not isinstance(exc, trust.CountsDisagree):
                raise
            return Trial(name, config, stage, refused=str(exc))
        finally:
            self._done_s += takes_s
        return Trial(
            name, config, stage, tuple(points), "; ".join(f"{each.name}: {each.reason}" for each in refused)
        )

    def _serve(self, name: str, config: Config) -> None:
        if name != self._serving:
            live_config.load(self._target, self._subject.model, config)
            self._serving = name

    def _config(self, name: str) -> Config:
        if name == PRESENT:
            return self._space.running
        return self._candidates[name].config(self._space.running)

    def _duel(self, challenger: Trial) -> Duel:
        """Both in turns, the first of a turn being the other one each time."""
        goal, turns = self._plan.goal, self._plan.turns
        best = goal.best(challenger.points) or nearest(challenger.points)
        theirs = goal.best(self.trials[PRESENT].points) or best
        sides = {challenger.name: best.demand, PRESENT: theirs.demand}
        seen: dict[str, list[Point]] = {name: [] for name in sides}
        takes_s = self._plan.seconds(self._plan.turn, 1)
        for turn in range(turns):
            for name in list(sides)[:: 1 if turn % 2 else -1]:
                words = f"turn {turn + 1} of {turns} against the present config: {name}"
                self._on_step(min(1.0, self._done_s / self.seconds), words)
                self._serve(name, self._config(name))
                point = self._turn(name, sides[name])
                seen[name] += [point] if point else []
                self._done_s += takes_s
        if min(len(points) for points in seen.values()) < min(turns, _FEWEST_TURNS):
            raise NoDuel(challenger)
        ours, present = (merge(seen[name]) for name in sides)
        keeps = goal.keeps(ours)
        misses = goal.p95_ms is not None and min(p95s(present), default=0.0) > goal.p95_ms
        return Duel(ours, present, goal.gain(ours, present), keeps, keeps and misses)

    def _turn(self, name: str, demand: Demand) -> Point | None:
        try:
            point = measure(self._subject, demand, self._target, self._plan.turn, name)
        except (trust.Disturbed, trust.CountsDisagree):
            return None
        return point

    def _expected_s(self) -> float:
        plan, points = self._plan, len(self._plan.demands)
        short = 1 + len(self._coarse) + self._space.most_fine(min(BASES, 1 + len(self._coarse)))
        return (
            short * plan.seconds(plan.short, points)
            + (1 + FINALISTS) * plan.seconds(plan.long, points)
            + 2 * plan.turns * plan.seconds(plan.turn, 1)
        )
