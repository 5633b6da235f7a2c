"""Search: a coarse grid in short windows, neighbours of the best, longer windows, then A/B rounds.

The windows of a search are many, and the best of many noisy figures is partly the luckiest. So what it
finds is measured again against the present config, in turns, and only those turns decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from gourmet.client.errors import TritonRefused
from gourmet.client.model_config import summary
from gourmet.measure import stats, sweep, validity
from gourmet.measure.inputs import DataSource
from gourmet.measure.results import Point
from gourmet.measure.scenario import load_config, restored
from gourmet.measure.sweep import OnStep
from gourmet.measure.task import Addresses, MeasureOptions, Workload
from gourmet.reports.page import render
from gourmet.repository.config_change import Change, changed
from gourmet.tuning.report import sentence
from gourmet.tuning.results import PRESENT, Confirmation, Trial, TuneRequest, Tuning, Verdict, nearest, p95s
from gourmet.tuning.space import Space

# How many go on: to have their neighbours tried, and to be measured for longer.
_BASES: Final = 2
_FINALISTS: Final = 3
_FEWEST_TURNS: Final = 3
# Windows may differ by half, since the noise is judged between turns.
_STEADINESS: Final = 0.5


def tune(
    request: TuneRequest,
    target: Addresses,
    options: MeasureOptions,
    data: DataSource,
    *,
    command: str,
    on_step: OnStep,
) -> Tuning:
    """Search the best config of a served model. Restore the config afterwards, unless the best is applied.

    Applied is only what beat the present config in turns, by more than their noise.
    """
    on_step(0.0, "asking every row alone")
    workload = sweep.prepare(request.model, target, data)
    with restored(target, [request.model]) as serves_afterwards:
        space = Space(serves_afterwards[request.model], request)
        search = Search(workload, target, options, space, on_step)
        verdict, best, confirmation = search.run()
        if applied := request.apply and verdict == "better":
            serves_afterwards[request.model] = best.config
        on_step(1.0, f"loading {best.name if applied else 'the present config'}")
    trials = tuple(search.trials.values())
    return Tuning(
        request,
        tuple(searched(space, trials, search.long)),
        trials,
        best.name,
        confirmation,
        verdict,
        sentence(request, verdict, best, confirmation),
        sweep.bench(
            f"The best config of {request.model} here: {request}",
            command,
            workload.rows.about,
            [confirmation.ours, confirmation.theirs] if confirmation else best.points,
        ),
        applied,
    )


def searched(space: Space, trials: Sequence[Trial], long: MeasureOptions) -> list[str]:
    """Describe what was tried, for a reader to judge the result."""
    numbers = {"bases": _BASES, "finalists": _FINALISTS}
    times = {"short": _shorter(long), "long": long}
    values = {"space": space, "request": space.request, "trials": trials, **numbers, **times}
    return render("tuning/searched.txt", **values).splitlines()


def _shorter(long: MeasureOptions) -> MeasureOptions:
    """Return options for a third of the time and one attempt: close candidates are measured longer."""
    return replace(long, window_s=long.window_s / 3, warm_up_s=long.warm_up_s / 2, attempts=1)


class Search:
    """One search on one model. Use it only within `restored`."""

    def __init__(
        self, workload: Workload, target: Addresses, options: MeasureOptions, space: Space, on_step: OnStep
    ) -> None:
        self._workload, self._target, self._space, self._on_step = workload, target, space, on_step
        self._request = space.request
        self._candidates: dict[str, Change] = {}
        self.trials: dict[str, Trial] = {}
        self._serving = PRESENT
        self.long = replace(options, steadiness=max(_STEADINESS, options.steadiness))

    def run(self) -> tuple[Verdict, Trial, Confirmation | None]:
        """Return the best config, and its A/B rounds against the current one, if they were possible."""
        self._try_the_present()
        short = _shorter(self.long)
        self._stage("coarse", self._space.coarse(), short, (0.05, 0.4))
        bases = [self._candidates[trial.name] for trial in self._ranked()[:_BASES]]
        self._stage("fine", self._space.fine(bases, self._candidates.values()), short, (0.4, 0.6))
        finalists = [trial.name for trial in self._ranked() if trial.name != PRESENT][:_FINALISTS]
        going_on = [self._candidates[name] for name in (PRESENT, *finalists)]
        self._stage("long", going_on, self.long, (0.6, 0.8))
        ranked = self._ranked()
        long = [trial for trial in ranked if trial.stage == "long"] or ranked
        if not any(self._request.best(trial.points) for trial in long):
            return "out of reach", min(long, key=lambda trial: nearest(trial.points).latency_ms.p95), None
        challenger = next((trial for trial in long if trial.name != PRESENT), None)
        if challenger is None:
            return "no better", self.trials[PRESENT], None
        confirmation = self._confirm(challenger)
        if confirmation is None:
            return "undecided", challenger, None
        return "better" if confirmation.won else "no better", challenger, confirmation

    def _try_the_present(self) -> None:
        retried = replace(_shorter(self.long), attempts=self.long.attempts)
        self._stage("coarse", [self._space.present], retried, (0.0, 0.05))

    def _ranked(self) -> list[Trial]:
        """Return the candidates, the best first, without rejected ones; raise if all were rejected."""
        measured = [trial for trial in self.trials.values() if trial.points]
        if not measured:
            reasons = dict.fromkeys(trial.refused for trial in self.trials.values())
            raise validity.Untrusted("no config could be measured: " + "; ".join(reasons))
        # What was measured for longer goes first: short windows flatter the lucky.
        measured.sort(
            key=lambda trial: (trial.stage == "long", *self._request.rank(trial.points)), reverse=True
        )
        return measured

    def _stage(
        self, stage: str, candidates: Sequence[Change], options: MeasureOptions, shares: tuple[float, float]
    ) -> None:
        """Try each candidate; `shares` of the whole search are done before and after."""
        for number, candidate in enumerate(candidates):
            running, is_present = self._space.running, candidate == self._space.present
            config = running if is_present else changed(running, candidate)
            trial = Trial(PRESENT if is_present else summary(config), config, stage)
            done = shares[0] + (shares[1] - shares[0]) * number / len(candidates)
            self._on_step(done, f"{stage} {number + 1} of {len(candidates)}: {trial.name}")
            self._candidates[trial.name] = candidate
            self.trials[trial.name] = self._tried(trial, options)

    def _tried(self, trial: Trial, options: MeasureOptions) -> Trial:
        loads = self._request.loads
        try:
            self._serve(trial)
            points, refused = sweep.run(self._workload, loads, self._target, options, trial.name)
        except (TritonRefused, validity.Untrusted) as exc:
            # A config of ours that does not serve is a result; if what serves now does not, nothing is.
            # A row that Triton counts late, in the measurement after its own, says nothing against a config.
            if trial.name == PRESENT and not isinstance(exc, validity.CountsDisagree):
                raise
            return replace(trial, refused=str(exc))
        return replace(trial, points=tuple(points), refused="; ".join(map(str, refused)))

    def _serve(self, trial: Trial) -> None:
        if trial.name != self._serving:
            load_config(self._target, self._request.model, trial.config)
            self._serving = trial.name

    def _confirm(self, challenger: Trial) -> Confirmation | None:
        """Measure both in A/B rounds, in alternating order; return None if too few rounds are valid."""
        request, present = self._request, self.trials[PRESENT]
        best = request.best(challenger.points) or nearest(challenger.points)
        theirs = request.best(present.points) or best
        sides = [(challenger, best.load), (present, theirs.load)]
        # Half of the time: the turns together are longer than any other measurement.
        half = replace(self.long, window_s=self.long.window_s / 2)
        seen: dict[str, list[Point]] = {challenger.name: [], PRESENT: []}
        for turn in range(request.turns):
            for trial, load in sides[:: 1 if turn % 2 else -1]:
                words = f"turn {turn + 1} of {request.turns} against the present config: {trial.name}"
                self._on_step(0.8 + 0.2 * turn / request.turns, words)
                self._serve(trial)
                with suppress(validity.Disturbed, validity.CountsDisagree):
                    seen[trial.name].append(
                        sweep.measure(self._workload, load, self._target, half, trial.name)
                    )
        if min(map(len, seen.values())) < min(request.turns, _FEWEST_TURNS):
            return None
        ours, others = (stats.merge(points) for points in seen.values())
        keeps = request.keeps(ours)
        misses = request.p95_ms is not None and min(p95s(others), default=0.0) > request.p95_ms
        return Confirmation(ours, others, request.gain(ours, others), keeps, keeps and misses)
