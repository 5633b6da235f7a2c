"""The same sentences by everybody, in turns: A B C … A B C …, each window kept as soon as it is measured."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from generation import ctranslate2_model, fastapi_server, in_python, served
from generation.served import Sentences
from generation.windows import Kept, Key, SentenceWindow
from gourmet.errors import UsageError
from gourmet.measure.task import MeasureOptions
from gourmet.measure.validity import WrongAnswers
from gourmet.runtime.instances import available_cpus
from gourmet.runtime.manifest import sha256
from gourmet.systems.translator.client_loop import PLACES
from gourmet.systems.translator.contract import TRANSLATION
from gourmet.systems.translator.data import DATA
from gourmet.systems.translator.network import Checkpoint, load
from gourmet.systems.translator.sentences import split
from gourmet.systems.translator.translating import translate
from gourmet.training.task import Tick

LEVELS: Final = (1, 8)
PYTHON: Final = "in Python, no server"
EAGER: Final = "transformers' generate, no server"
FASTAPI: Final = "CTranslate2 behind FastAPI"
# Of its numbers: all bits, which say what the network says, and eight, which are faster.
FORMS: Final = ("float32", "int8")
# Of a window's figures: the share of sentences to which the arm says what the network says.
AGREES: Final = "agrees"
# Pieces of a sentence; longer ones do not fit `onnx-model`.
_LONGEST: Final = PLACES - 5
# Where eight bits round what goes through the products too, as in CTranslate2, one sentence in ten has other
# words; whose words differ more often is another network.
_LEAST_AGREEMENT: Final = 0.8
# The pieces of a long sentence that short ones stand beside, about.
_LONG: Final = 110
_SHORT: Final = 3


@dataclass(frozen=True)
class Plan:
    weights: Path
    data: Path
    sentences: int
    turns: int
    effort: MeasureOptions
    out: Path

    def identity(self) -> dict[str, object]:
        return {
            "weights": sha256(self.weights),
            "data": str(self.data),
            "sentences": self.sentences,
            "turns": self.turns,
            "window": [self.effort.warm_up_s, self.effort.measure_s],
        }


@dataclass(frozen=True)
class Side:
    """Everything that was measured."""

    plan: Plan
    windows: Sequence[SentenceWindow]
    sentences: int
    pieces: float  # of an answer


def layouts() -> list[tuple[int, int]]:
    """Workers and threads of each, by which CTranslate2 may use all processors."""
    cpus = available_cpus()
    return [(1, cpus)] if cpus == 1 else [(1, cpus), (cpus, 1)]


def measure(plan: Plan, tick: Tick) -> Side:
    tick(0.0, "the network's own answers")
    checkpoint = load(plan.weights)
    texts = _texts(plan, checkpoint)
    wanted = translate(checkpoint.network, checkpoint.tokenizer, texts)
    kept = Kept(plan.out, plan.identity())
    with TemporaryDirectory(prefix="gourmet-generation-") as name:
        sentences = _folders(Path(name), texts, checkpoint)
        bench = _Bench(plan, kept, checkpoint, texts, wanted, sentences, tick)
        for turn in range(plan.turns):
            bench.turn(turn)
    pieces = sum(len(checkpoint.tokenizer.encode_target(text)) for text in wanted) / len(wanted)
    return Side(plan, list(kept.windows.values()), len(texts), pieces)


class _Bench:
    def __init__(
        self,
        plan: Plan,
        kept: Kept,
        checkpoint: Checkpoint,
        texts: Sequence[str],
        wanted: Sequence[str],
        sentences: Sentences,
        tick: Tick,
    ) -> None:
        self._plan, self._kept, self._checkpoint = plan, kept, checkpoint
        self._texts, self._wanted, self._sentences, self._tick = texts, wanted, sentences, tick
        self._threads = sorted({1, available_cpus()})
        self._agreement: dict[str, float] = {}

    def turn(self, turn: int) -> None:
        self._served(turn)
        self._in_python(turn)
        self._eager(turn)
        self._behind_fastapi(turn)

    def _keys(self, turn: int, arm: str, levels: Sequence[int] = LEVELS) -> list[Key]:
        """What is still to be measured of an arm."""
        return [key for level in levels if (key := Key(turn, arm, level)) not in self._kept]

    def _keep(self, key: Key, measured: Callable[[], SentenceWindow]) -> None:
        self._tick(
            len(self._kept.windows) / (self._plan.turns * windows_a_turn()),
            f"turn {key.turn + 1} of {self._plan.turns}: {key.arm}, {key.level} at a time",
        )
        window = measured()
        agrees = self._agreement.get(key.arm)
        told = {} if agrees is None else {AGREES: agrees}
        self._kept.keep(replace(window, figures={**window.figures, **told}))

    def _served(self, turn: int) -> None:
        arms = [(arm, self._keys(turn, arm.name, arm.levels)) for arm in served.ARMS]
        mixed = [
            (said, key) for arm, said in served.MIXED for key in self._keys(turn, arm, [served.MIXED_LEVEL])
        ]
        if not mixed and not any(keys for _, keys in arms):
            return
        self._tick(len(self._kept.windows) / (self._plan.turns * windows_a_turn()), "starting Triton")
        with served.serving(self._sentences, self._plan.effort) as bench:
            for arm, keys in arms:
                if keys:
                    self._agrees(arm.name, bench.answers(arm))
                for key in keys:
                    self._keep(key, partial(bench.window, arm, key))
            for said, key in mixed:
                self._keep(key, partial(bench.mixed, said, key))

    def _in_python(self, turn: int) -> None:
        for threads in self._threads:
            arm = f"{PYTHON}, threads: {threads}"
            if not (keys := self._keys(turn, arm)):
                continue
            here = in_python.InPython(served.INSIDE, threads)
            try:
                right = [here.answer(text) for text in self._texts]
                self._agrees(arm, right)

                def once(number: int, here: in_python.InPython = here, right: list[str] = right) -> int:
                    place = number % len(right)
                    in_python.checked([here.answer(self._texts[place])], [right[place]], PYTHON)
                    return 1

                took = here.parts_ms(sorted(self._texts, key=len)[len(self._texts) // 2])
                for key in keys:
                    self._keep(key, partial(in_python.window, key, self._plan.effort, once, key.level, took))
            finally:
                here.close()

    def _eager(self, turn: int) -> None:
        for key in self._keys(turn, EAGER):
            eager = in_python.Eager(self._checkpoint, self._texts, key.level)
            self._agrees(EAGER, eager.answers)
            self._keep(key, partial(in_python.window, key, self._plan.effort, eager.once, 1, {}))

    def _behind_fastapi(self, turn: int) -> None:
        wanted = [
            (form, layout, keys)
            for form in FORMS
            for layout in layouts()
            if (keys := self._keys(turn, f"{FASTAPI}, {form}, {layout[0]} × {layout[1]}"))
        ]
        if not wanted:
            return
        programs = fastapi_server.programs(self._tick)
        for form, (workers, threads), keys in wanted:
            with TemporaryDirectory(prefix="gourmet-ctranslate2-") as name:
                ctranslate2_model.convert(self._checkpoint, Path(name), form)
                with fastapi_server.serving(
                    programs, Path(name), self._checkpoint.folder, threads=threads, workers=workers
                ) as address:
                    right = asyncio.run(_answers(address, self._texts))
                    self._agrees(keys[0].arm, right)
                    for key in keys:
                        measured = partial(
                            fastapi_server.window, key, address, self._texts, right, self._plan.effort
                        )
                        self._keep(key, measured)

    def _agrees(self, arm: str, said: Sequence[str]) -> None:
        """Note how often it says what the network says; raise where that is too seldom."""
        same = sum(a == b for a, b in zip(said, self._wanted, strict=True)) / len(said)
        if same < _LEAST_AGREEMENT:
            raise WrongAnswers(
                f"{arm} says what the network says to {same:.0%} of the sentences only: deploy the weights "
                "that are compared with `gourmet deploy translator --format all --weights`"
            )
        self._agreement[arm] = same


def windows_a_turn() -> int:
    at_triton = sum(len(arm.levels) for arm in served.ARMS) + len(served.MIXED)
    return at_triton + len(LEVELS) * (len({1, available_cpus()}) + 1 + len(FORMS) * len(layouts()))


async def _answers(address: str, texts: Sequence[str]) -> list[str]:
    wire = fastapi_server.FastApi(address, texts)
    try:
        return [
            wire.read(await wire.send(wire.request((row,))))[TRANSLATION].item().decode()
            for row in range(len(texts))
        ]
    finally:
        await wire.close()


def _texts(plan: Plan, checkpoint: Checkpoint) -> list[str]:
    """Different texts that fit every arm: each a single sentence, since not everybody cuts them."""

    def size(text: str) -> int:
        return len(checkpoint.tokenizer.encode(text))

    found = dict.fromkeys(pair.text for pair in DATA.references(plan.data, "test", plan.sentences))
    fitting = [text for text in found if split(text, size, _LONGEST) == [(text, True)]]
    if sum(map(size, fitting)) < 2 * _LONG:
        raise UsageError(
            f"{plan.data} has {len(fitting)} single sentences of at most {_LONGEST} pieces among its first "
            f"{plan.sentences}, which is too few: name more with --sentences"
        )
    return fitting


def _folders(folder: Path, texts: Sequence[str], checkpoint: Checkpoint) -> Sentences:
    """The sentences as files: the usual ones, and three short ones before each long one."""
    short = sorted(texts, key=len)[: max(2, len(texts) // 3)]
    mixed = [
        text
        for number, long in enumerate(_long_ones(texts, checkpoint))
        for text in (*(short[(number * _SHORT + at) % len(short)] for at in range(_SHORT)), long)
    ]
    for name, these in (("usual", texts), ("mixed", mixed)):
        (folder / name).mkdir()
        for number, text in enumerate(these):
            (folder / name / f"{number:04}.txt").write_text(text, encoding="utf-8")
    return Sentences(folder / "usual", folder / "mixed")


def _long_ones(texts: Sequence[str], checkpoint: Checkpoint) -> Iterator[str]:
    """Sentences strung together by commas, each in about as many pieces as are let through uncut."""
    clauses: list[str] = []
    for text in texts:
        clauses.append(text.rstrip(".!?… ").lower())
        if len(checkpoint.tokenizer.encode(", ".join(clauses))) > _LONG:
            yield ", ".join(clauses[:-1]).capitalize() + "."
            clauses = clauses[-1:]
