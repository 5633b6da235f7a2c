"""Photos through Triton, without it, and through FastAPI; and translations beside captions."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from generation.asking import Exchanged
from generation.sentences import agreement
from generation.served import IN_PROCESS, STREAMED, GenerationServer
from generation.without_triton import behind_uvicorn, in_python
from gourmet import repository
from gourmet.measure.inputs import DataSource
from gourmet.measure.results import LoadSpec
from gourmet.measure.scenario import own_server
from gourmet.measure.task import MeasureOptions
from gourmet.pictures.decode import squashed_pixels
from gourmet.runtime.instances import available_cpus
from gourmet.systems.captioner.contract import IMAGE, SYSTEM
from gourmet.systems.captioner.data import photos, read
from gourmet.systems.captioner.export import eager_answers
from gourmet.systems.captioner.network import CaptionerCheckpoint
from gourmet.systems.captioner.serving import SERVING
from gourmet.systems.captioner.tokenizer import MAX_TOKENS
from harness.load import BenchLoad, BenchWindow, HttpClient
from harness.run import Contender, Measure

FASTAPI: Final = "transformers' generate behind FastAPI"
TRANSLATION: Final = "one translation at a time"
BESIDE_CAPTIONS: Final = "one translation at a time, beside eight captions"
BESIDE_TRANSLATIONS: Final = "one translation at a time, beside eight translations"
MANY: Final = 8

# What eight bits see is a little else: three captions in four are those of the network in 32.
_LEAST_AGREEMENT: Final = 0.5
_TEXTS: Final = 64
_SEED: Final = 5
_ASKED: Final = {
    IN_PROCESS: LoadSpec("captioner"),
    STREAMED: LoadSpec("captioner_stream"),
    **dict.fromkeys((TRANSLATION, BESIDE_CAPTIONS, BESIDE_TRANSLATIONS), LoadSpec("translator")),
}
_BESIDE: Final = {BESIDE_CAPTIONS: IN_PROCESS, BESIDE_TRANSLATIONS: TRANSLATION}


@dataclass(frozen=True)
class PhotosAsked:
    """Photos, and what the network in 32 bits says to them. Fulfils `generation.sentences.BenchExamples`."""

    checkpoint: CaptionerCheckpoint
    examples: Sequence[bytes]
    options: MeasureOptions
    folder: Path
    system: str = SYSTEM.name

    @cached_property
    def network_says(self) -> list[str]:
        pixels = [squashed_pixels(photo, self.checkpoint.network.side) for photo in self.examples]
        return [
            self.checkpoint.tokenizer.decode(words)
            for words in eager_answers(self.checkpoint.network, pixels)
        ]

    @property
    def pieces(self) -> float:
        """Of an answer, on average."""
        encode = self.checkpoint.tokenizer.encode
        return sum(len(encode(text)) for text in self.network_says) / len(self.network_says)

    def agreement(self, arm: str, said: Sequence[str]) -> dict[str, float]:
        if arm in (TRANSLATION, *_BESIDE):
            return {}
        return agreement(arm, said, self.network_says, _LEAST_AGREEMENT, self.system)

    def source(self, arm: str) -> DataSource:
        if arm in (TRANSLATION, *_BESIDE):
            return DataSource(_TEXTS, _SEED)
        if not self.folder.is_dir():
            self.folder.mkdir()
            for number, photo in enumerate(self.examples):
                (self.folder / f"{number:04}.jpg").write_bytes(photo)
        return DataSource(len(self.examples), folder=self.folder)


def of(data: Path, count: int) -> list[bytes]:
    """Those of the test part."""
    return [*read(data, photos(data, "test", count))]


def contenders(captions: PhotosAsked, programs: Callable[[], Path]) -> list[Contender]:
    """`programs` is the folder of those of FastAPI's environment."""
    cpus = sorted({1, available_cpus()})
    return [
        served(captions),
        *(
            in_python(captions, each, SERVING, repository.served_package("captioner"), IMAGE, (1, MANY))
            for each in cpus
        ),
        *(behind_fastapi(captions, programs, each) for each in cpus),
    ]


def served(captions: PhotosAsked) -> Contender:
    arms = ((IN_PROCESS, 1), (IN_PROCESS, MANY), (STREAMED, 1), *((arm, 1) for arm in _BESIDE))

    @contextmanager
    def start() -> Iterator[Measure]:
        models = sorted({each.model for each in _ASKED.values()})
        with own_server((repository.DEFAULT,), models) as addresses:
            server = GenerationServer(addresses, captions, _ASKED)

            def measure(load: BenchLoad) -> BenchWindow:
                if others := _BESIDE.get(load.arm):
                    return server.beside(load, BenchLoad(others, load.inputs, MANY))
                return server.window(load)

            yield measure

    return Contender("Triton", [BenchLoad(arm, captions.system, level) for arm, level in arms], start)


def behind_fastapi(captions: PhotosAsked, programs: Callable[[], Path], threads: int) -> Contender:
    """With the torch and transformers of this environment: theirs brings the server."""
    arm = f"{FASTAPI}, threads: {threads}"

    @contextmanager
    def start() -> Iterator[Measure]:
        (packages,) = (programs().parent / "lib").glob("python*/site-packages")
        env: Mapping[str, str] = {
            "PYTHONPATH": os.pathsep.join([str(packages), os.environ.get("PYTHONPATH", "")]),
            "WEIGHTS": str(captions.checkpoint.weights.resolve()),
            "MAX_TOKENS": str(MAX_TOKENS),
            "THREADS": str(threads),
        }
        command = [sys.executable, "-m", "uvicorn", "captioner_app:app"]
        with behind_uvicorn(arm, captions, command, env, _caption) as measure:
            yield measure

    return Contender(arm, [BenchLoad(arm, captions.system, MANY)], start)


def _caption(client: HttpClient, photo: bytes) -> Exchanged:
    answer = client.request("POST", "/caption", photo)
    return Exchanged(json.loads(answer)["caption"], len(photo) + len(answer))
