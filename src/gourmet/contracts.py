"""What every system says about itself, and what its task adds. numpy only.

`gourmet up`, doctor, the health checks of the containers, bench, check, the lab and the app know these
protocols and no system by name. A system's folder has a `contract.py` whose `SYSTEM` fulfils one of them;
`gourmet.systems.registry` finds it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, Protocol, runtime_checkable

import numpy.typing as npt

from gourmet.errors import GourmetError

Array = npt.NDArray[Any]
Tensors = Mapping[str, Array]
Task = Literal["classification", "generation"]
ExampleKind = Literal["text", "picture"]
# What a client may ask for beside its example, by the name of an input in lower case.
Options = Mapping[str, int | str]
NO_OPTIONS: Final[Options] = MappingProxyType({})

# Parameters of a model's config.pbtxt that tell whose model it is and how to read it.
SYSTEM_PARAMETER: Final = "system"
# The parameter of a request to Triton in which our app names the client that it asks for.
CLIENT_PARAMETER: Final = "client"
# In the config of a model that serves an older version: the newest one, which does not load.
INSTEAD_OF: Final = "instead_of"
# Where it says anything, the web app answers by the model only where its settings name it.
WEB_PARAMETER: Final = "web"
LABELS_PARAMETER: Final = "labels"
TEMPERATURE_PARAMETER: Final = "temperature"
THRESHOLD_PARAMETER: Final = "threshold"
SUBJECT_THRESHOLD_PARAMETER: Final = "subject_threshold"
# What evaluating a network finds, and a config says with a version.
CALIBRATION_PARAMETERS: Final = (TEMPERATURE_PARAMETER, THRESHOLD_PARAMETER, SUBJECT_THRESHOLD_PARAMETER)


def client_of_request(parameters: str) -> str:
    """The client in a request's parameters, as Triton's Python backend has them; empty if none is named."""
    return str(json.loads(parameters or "{}").get(CLIENT_PARAMETER, ""))


class BadModel(GourmetError):
    """A served model whose config contradicts its system."""


class TooMuch(ValueError):
    """An example that makes more work than one may; the message says how much is allowed."""


class BadAnswer(GourmetError):
    """A served model answered, and not as models of its system do."""


def finite(value: Any) -> float:
    if not math.isfinite(number := float(value)):
        raise ValueError(f"{number} is not a number")
    return number


@dataclass(frozen=True)
class TensorSpec:
    """An input or output as Triton tells it; −1 is a dimension of any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ModelInfo:
    """What a served model takes and gives, as Triton tells."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    parameters: Mapping[str, str] = field(default_factory=dict)
    version: str = ""  # the newest of those that are ready, which is the one that answers
    max_batch_size: int = 0  # 0 where its shapes are whole, without a first dimension of rows
    decoupled: bool = False  # it may answer a request in several pieces
    pinned: bool = False  # this version is meant, also where a newer one serves

    @classmethod
    def from_triton(cls, metadata: Mapping[str, Any], config: Mapping[str, Any]) -> ModelInfo:
        """Out of the server's own answers about a model; KeyError or TypeError where they are not that."""

        def specs(tensors: Sequence[Mapping[str, Any]]) -> tuple[TensorSpec, ...]:
            return tuple(
                TensorSpec(t["name"], t["datatype"], tuple(int(size) for size in t["shape"])) for t in tensors
            )

        given: Mapping[str, Mapping[str, str]] = config.get("parameters", {})
        parameters = {key: value.get("string_value", "").strip() for key, value in given.items()}
        versions = list(map(str, metadata.get("versions") or [""]))
        return cls(
            name=str(metadata["name"]),
            inputs=specs(metadata["inputs"]),
            outputs=specs(metadata["outputs"]),
            parameters=parameters,
            version=max(versions, key=lambda text: (len(text), text)),
            max_batch_size=int(config.get("max_batch_size", 0)),
            decoupled=bool(config.get("model_transaction_policy", {}).get("decoupled", False)),
        )

    def at(self, version: str) -> ModelInfo:
        """The same where this version is meant."""
        return replace(self, version=version, pinned=True)

    @cached_property
    def target(self) -> str:
        """What Triton is asked for: NAME, which is the newest version, or NAME/VERSION."""
        return f"{self.name}/{self.version}" if self.pinned else self.name

    @cached_property
    def system(self) -> str:
        """The name of the system that it belongs to; empty where its config names none."""
        return self.parameters.get(SYSTEM_PARAMETER, "")

    @cached_property
    def is_open_to_web(self) -> bool:
        """Whether visitors of the web app may choose it, beside those that its settings name."""
        return not self.parameters.get(WEB_PARAMETER)

    def number(self, parameter: str, default: float) -> float:
        """A parameter of the config that is a number."""
        text = self.parameters.get(parameter, "")
        above = " above 0" if parameter == TEMPERATURE_PARAMETER else ""
        with suppress(ValueError):
            found = finite(text or default)
            if found > 0 or not above:
                return found
        raise BadModel(
            f"the config of {self.name!r} says {parameter} = {text[:80]!r}, which is not a number{above}"
        )

    @cached_property
    def temperature(self) -> float:
        return self.number(TEMPERATURE_PARAMETER, 1.0)

    @cached_property
    def threshold(self) -> float:
        """What a probability has to reach for the answer to be sure; 0 where nothing is said."""
        return self.number(THRESHOLD_PARAMETER, 0.0)

    def reaches(self, score: float | None) -> bool | None:
        """Whether a generated text of this score may be relied on; None where nothing is said."""
        if score is None or not self.parameters.get(THRESHOLD_PARAMETER):
            return None
        return score >= self.threshold

    def is_sure(self, answer: GeneratedText) -> bool | None:
        """Whether a whole answer may be: each of its sentences, and nothing about it is doubtful."""
        reached = self.reaches(answer.worst)
        return reached and not answer.warning

    @cached_property
    def subject_threshold(self) -> float:
        """Below it, a picture does not show the system's subject; 0 where the model does not tell that."""
        return self.number(SUBJECT_THRESHOLD_PARAMETER, 0.0)


@runtime_checkable
class System(Protocol):
    """What a system of any task says about itself."""

    @property
    def name(self) -> str:
        """The folder's name, and what the parameter `system` of its models' configs says."""

    @property
    def task(self) -> Task: ...

    @property
    def title(self) -> str:
        """What people call it, for headings and navigation."""

    @property
    def model_variable(self) -> str:
        """The variable of the environment that chooses which served model answers."""

    @property
    def default_model(self) -> str:
        """The model that answers where the variable is not set."""

    @property
    def metrics_prefix(self) -> str:
        """What the names of its metrics begin with."""

    def sample(self) -> bytes:
        """What a served model is asked first, in the form in which examples are."""

    def examples(self, count: int, seed: int) -> Sequence[bytes]:
        """Different inputs to benchmark and test with, the same ones for the same arguments.

        Each is what a client would send: the bytes of a picture file, or a text as UTF-8.
        """

    def request_inputs(self, example: bytes, model: ModelInfo) -> Tensors:
        """One row for `model`; raise BadModel if it is not one of this system's models."""

    def describe_answer(self, outputs: Tensors, model: ModelInfo) -> str:
        """One sentence on the answer to the sample; raise BadAnswer, saying what is wrong with it."""


class ScoredSentence(NamedTuple):
    """Where a sentence of an answer begins and ends in its text, and the score that it has by itself."""

    begin: int
    end: int
    score: float


@dataclass(frozen=True)
class GeneratedText:
    """An answer, or a piece of one; `tokens` and `score`, where they are told, are of the answer so far."""

    text: str
    tokens: int | None = None
    score: float | None = None
    others: Sequence[str] = ()  # what a search found beside it, the better first
    warning: str = ""  # what is doubtful about it
    # Of a whole answer, and of the last piece of one; None where the model does not tell them.
    sentences: Sequence[ScoredSentence] | None = None

    @property
    def worst(self) -> float | None:
        """The score of its least likely sentence, or its own where none is told."""
        return min((each.score for each in self.sentences or ()), default=self.score)


@runtime_checkable
class Generation(System, Protocol):
    """A system whose models answer an example, a text or a picture, with a text."""

    @property
    def example_kind(self) -> ExampleKind: ...

    def request_inputs(self, example: bytes, model: ModelInfo, options: Options = NO_OPTIONS) -> Tensors:
        """One row; raise ValueError for an example or an option that `model` does not take."""

    def generated(self, outputs: Tensors, model: ModelInfo) -> GeneratedText:
        """The whole answer, or one piece of a streamed one; raise BadAnswer."""


@runtime_checkable
class WarnsOfAnswers(Protocol):
    """A system that can tell from an answer what is doubtful about it."""

    def with_warning(self, example: bytes, answer: GeneratedText) -> GeneratedText:
        """A whole answer, and what is doubtful about it in a sentence; the same where nothing is."""
