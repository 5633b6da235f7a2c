"""The protocols of systems: the members of every system, and those that its task adds. numpy only.

`gourmet up`, doctor, the health checks of the containers, bench, check, the lab and the app use these
protocols and know no system by name. A system's folder has a `contract.py` whose `SYSTEM` implements one of
them; `gourmet.systems.registry` finds it.
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
# Optional inputs of a request beside its example, by their names in lower case.
Options = Mapping[str, int | str]
NO_OPTIONS: Final[Options] = MappingProxyType({})

# Parameters of a model's config.pbtxt: its system, and how to read its answers.
SYSTEM_PARAMETER: Final = "system"
# A parameter of requests to Triton: the client for whom the web app asks.
CLIENT_PARAMETER: Final = "client"
# In the config of a model that serves an older version: the newest version, which does not load.
INSTEAD_OF: Final = "instead_of"
# With any value, the web app uses the model only if its settings name it.
WEB_PARAMETER: Final = "web"
LABELS_PARAMETER: Final = "labels"
TEMPERATURE_PARAMETER: Final = "temperature"
THRESHOLD_PARAMETER: Final = "threshold"
SUBJECT_THRESHOLD_PARAMETER: Final = "subject_threshold"
# JSON: by threshold, the share of held-out examples that is answered, and the share of those that is right.
COVERAGE_PARAMETER: Final = "coverage"
# Results of evaluating a network, which belong to a version's part of the config.
CALIBRATION_PARAMETERS: Final = (
    TEMPERATURE_PARAMETER,
    THRESHOLD_PARAMETER,
    SUBJECT_THRESHOLD_PARAMETER,
    COVERAGE_PARAMETER,
)


def client_of_request(parameters: str) -> str:
    """Return the client in the JSON of a request's parameters; empty if none is named."""
    return str(json.loads(parameters or "{}").get(CLIENT_PARAMETER, ""))


class BadModel(GourmetError):
    """A served model whose config contradicts its system."""


class TooMuch(ValueError):
    """An example that is too large; the message names the limit."""


class BadAnswer(GourmetError):
    """A served model answered, but not like models of its system."""


def finite(value: Any) -> float:
    if not math.isfinite(number := float(value)):
        raise ValueError(f"{number} is not a number")
    return number


@dataclass(frozen=True)
class TensorSpec:
    """An input or output as Triton describes it; −1 is a dimension of any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ModelInfo:
    """A served model's inputs, outputs and config, as Triton describes them."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    parameters: Mapping[str, str] = field(default_factory=dict)
    version: str = ""  # the newest one that is ready: it answers
    max_batch_size: int = 0  # 0: the shapes have no batch dimension
    decoupled: bool = False  # it may answer a request in several pieces
    pinned: bool = False  # requests name this version, even if a newer one serves

    @classmethod
    def from_triton(cls, metadata: Mapping[str, Any], config: Mapping[str, Any]) -> ModelInfo:
        """Read the server's answers about a model; raise KeyError or TypeError for anything else."""

        def specs(tensors: Sequence[Mapping[str, Any]]) -> tuple[TensorSpec, ...]:
            return tuple(
                TensorSpec(t["name"], t["datatype"], tuple(int(size) for size in t["shape"])) for t in tensors
            )

        values: Mapping[str, Mapping[str, str]] = config.get("parameters", {})
        parameters = {key: value.get("string_value", "").strip() for key, value in values.items()}
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
        """Return the model pinned to this version."""
        return replace(self, version=version, pinned=True)

    @cached_property
    def target(self) -> str:
        """The model in requests to Triton: NAME for the newest version, or NAME/VERSION."""
        return f"{self.name}/{self.version}" if self.pinned else self.name

    @cached_property
    def system(self) -> str:
        """The name of the model's system; empty if its config names none."""
        return self.parameters.get(SYSTEM_PARAMETER, "")

    @cached_property
    def is_open_to_web(self) -> bool:
        """True if visitors of the web app may choose the model, even if the settings do not name it."""
        return not self.parameters.get(WEB_PARAMETER)

    def number(self, parameter: str, default: float) -> float:
        """Return a parameter of the config as a number."""
        text = self.parameters.get(parameter, "")
        above = " above 0" if parameter == TEMPERATURE_PARAMETER else ""
        with suppress(ValueError):
            value = finite(text or default)
            if value > 0 or not above:
                return value
        raise BadModel(
            f"the config of {self.name!r} has {parameter} = {text[:80]!r}; it must be a number{above}"
        )

    @cached_property
    def temperature(self) -> float:
        return self.number(TEMPERATURE_PARAMETER, 1.0)

    @cached_property
    def threshold(self) -> float:
        """The probability from which on an answer is sure; 0 by default."""
        return self.number(THRESHOLD_PARAMETER, 0.0)

    def reaches(self, score: float | None) -> bool | None:
        """Return whether a generated text of this score is sure; None without a score or a threshold."""
        if score is None or not self.parameters.get(THRESHOLD_PARAMETER):
            return None
        return score >= self.threshold

    def is_sure(self, answer: GeneratedText) -> bool | None:
        """Return whether a whole answer is sure: each of its sentences is, and it has no warning."""
        reached = self.reaches(answer.worst)
        return reached and not answer.warning

    @cached_property
    def subject_threshold(self) -> float:
        """The relevance below which a picture does not show the system's subject; 0 by default."""
        return self.number(SUBJECT_THRESHOLD_PARAMETER, 0.0)


@runtime_checkable
class System(Protocol):
    """The members of every system."""

    @property
    def name(self) -> str:
        """The folder's name, and the value of the parameter `system` in its models' configs."""

    @property
    def task(self) -> Task: ...

    @property
    def title(self) -> str:
        """The name for headings and navigation."""

    @property
    def model_variable(self) -> str:
        """The environment variable that chooses the served model."""

    @property
    def default_model(self) -> str:
        """The served model if the variable is not set."""

    @property
    def metrics_prefix(self) -> str:
        """The prefix of its metrics' names."""

    def sample(self) -> bytes:
        """Return the example that every served model is asked first."""

    def examples(self, count: int, seed: int) -> Sequence[bytes]:
        """Return different inputs for benchmarks and tests: the same ones for the same arguments.

        Each is a client's input: the bytes of a picture file, or a text as UTF-8.
        """

    def request_inputs(self, example: bytes, model: ModelInfo) -> Tensors:
        """Return the input tensors of one row; raise BadModel if `model` is of another system."""

    def describe_answer(self, outputs: Tensors, model: ModelInfo) -> str:
        """Describe the answer to the sample in one sentence; raise BadAnswer if it is invalid."""


class ScoredSentence(NamedTuple):
    """The position of a sentence in the text of an answer, and its score."""

    begin: int
    end: int
    score: float


@dataclass(frozen=True)
class GeneratedText:
    """An answer, or a piece of one. `tokens` and `score` are those of the answer so far, if known."""

    text: str
    tokens: int | None = None
    score: float | None = None
    others: Sequence[str] = ()  # the other answers of a beam search, the best first
    warning: str = ""  # why the answer may be wrong
    # The sentences of a whole answer, on its last piece; None if the model does not return them.
    sentences: Sequence[ScoredSentence] | None = None

    @property
    def worst(self) -> float | None:
        """The score of the least likely sentence, or the answer's own without sentences."""
        return min((sentence.score for sentence in self.sentences or ()), default=self.score)


@runtime_checkable
class Generation(System, Protocol):
    """A system whose models answer a text or a picture with a text."""

    @property
    def example_kind(self) -> ExampleKind: ...

    def request_inputs(self, example: bytes, model: ModelInfo, options: Options = NO_OPTIONS) -> Tensors:
        """Return the input tensors of one row; raise ValueError for a bad example or option."""

    def generated(self, outputs: Tensors, model: ModelInfo) -> GeneratedText:
        """Return the whole answer, or one piece of a streamed one; raise BadAnswer."""


@runtime_checkable
class WarnsOfAnswers(Protocol):
    """A system that warns of doubtful answers."""

    def with_warning(self, example: bytes, answer: GeneratedText) -> GeneratedText:
        """Return the answer with a warning if it is doubtful, otherwise unchanged."""
