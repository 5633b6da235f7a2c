"""Compute table rows: read photos or texts, decode them if the model takes pixels, and ask the model."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from gourmet.bulk.inputs import as_text
from gourmet.bulk.resumable_table import Columns, Row
from gourmet.contracts import ExampleKind, Generation, Options, Tensors, WarnsOfAnswers
from gourmet.errors import GourmetError, UsageError, printable
from gourmet.pictures.certainty import Named, RankedLabels, State, marks
from gourmet.pictures.classifier import PictureClassifier
from gourmet.pictures.decode import PictureError
from gourmet.pictures.header import parse_header
from gourmet.stack.connect import connect
from gourmet.systems import registry
from gourmet.triton_client.deadline import Deadline
from gourmet.triton_client.errors import InvalidRequest

NOT_SURE: Final = "  (not sure)"
# By kind of example: the columns of the input and of its answer, and the inputs of a request. Two requests
# fill the served loop, and no photo waits long for the others of its request to be decoded.
_COLUMNS: Final[Mapping[ExampleKind, tuple[str, str, int]]] = {
    "picture": ("path", "caption", 8),
    "text": ("text", "translation", 16),
}
_ONLY_ROW: Final = re.compile(r"^\w+ row 0 of 1: ")


@dataclass(frozen=True)
class Example:
    """An input as the model's tensors, or its error."""

    name: str
    inputs: Tensors | None = None
    error: str = ""
    sha256: str | None = None
    text: bytes = b""


class ModelRows:
    """A served model that returns rows. Several threads may call it."""

    named: str  # the column with the input
    within_s: float
    together: int
    in_flight: int

    def __init__(self, url: str, model: str) -> None:
        self._triton = connect(url)
        try:
            self.model = self._triton.describe(model)
        except BaseException:
            self._triton.close()
            raise

    @property
    def columns(self) -> Columns:
        raise NotImplementedError

    @property
    def plan(self) -> Mapping[str, Any]:
        return {"model": self.model.name, "columns": list(self.columns)}

    def in_words(self, row: Row) -> str:
        """Return an answered row for a terminal."""
        raise NotImplementedError

    def rows(self, names: Sequence[str]) -> list[Row]:
        """Return a row for each input. A bad input gets an error in its row; other failures are raised."""
        examples = [self._read_example(name) for name in names]
        answers = iter(self._answer_examples([example for example in examples if example.inputs is not None]))
        return [
            self._row(example, {"error": example.error} if example.inputs is None else next(answers))
            for example in examples
        ]

    def close(self) -> None:
        self._triton.close()

    def _read_example(self, name: str) -> Example:
        raise NotImplementedError

    def _answer_rows(self, examples: Sequence[Example], outputs: Tensors) -> list[Row]:
        raise NotImplementedError

    def _answer_examples(self, examples: Sequence[Example]) -> list[Row]:
        if not examples:
            return []
        tensors = [example.inputs or {} for example in examples]
        batch = {name: np.concatenate([inputs[name] for inputs in tensors]) for name in tensors[0]}
        try:
            answer = self._triton.infer(self.model.target, batch, Deadline(self.within_s))
        except InvalidRequest as exc:
            if len(examples) > 1:  # find the bad one
                return [row for example in examples for row in self._answer_examples([example])]
            return [{"error": printable(_ONLY_ROW.sub("", str(exc)))}]
        return [
            {**row, "version": answer.model_version} for row in self._answer_rows(examples, answer.outputs)
        ]

    def _row(self, example: Example, answer: Row) -> Row:
        known = {"sha256": example.sha256, "model": self.model.name}
        row = {self.named: as_text(example.name), **known, **answer}
        return {column: row.get(column) for column in self.columns}


class PhotoRows(ModelRows):
    """Classifies photos."""

    named = "path"
    within_s = 60.0
    together, in_flight = 4, 16

    @cached_property
    def contract(self) -> PictureClassifier:
        model, system = self.model.name, self.model.system
        if not system:
            raise UsageError(f"the config of {model!r} names no system: name another model with --model")
        contract = registry.load(system)
        if not isinstance(contract, PictureClassifier):
            raise UsageError(f"{model!r} does not classify pictures: name another model with --model")
        return contract

    @cached_property
    def labels(self) -> tuple[str, ...]:
        return self.contract.labels_of(self.model)

    @cached_property
    def columns(self) -> Columns:
        subject: Mapping[str, type] = {
            **{"relevant": bool, "doubtful": bool},
            self.contract.subject: float,
        }
        return {
            **{"path": str, "verdict": str, "label": str, "probability": float},
            **{"sure": bool, "threshold": float},
            **(subject if self._tells_subject else {}),
            "candidates": str,
            **({"dish": str, "dishes": str} if self.contract.likely else {}),
            "error": str,
            "model": str,
            "version": str,
            "sha256": str,
            "probabilities": self.labels,
        }

    @property
    def _tells_subject(self) -> bool:
        return bool(self.contract.subject and self.model.subject_threshold)

    def _read_example(self, name: str) -> Example:
        try:
            data = Path(name).read_bytes()
        except OSError as exc:
            return Example(name, error=printable(f"the file cannot be read: {exc.strerror or exc}"))
        digest = hashlib.sha256(data).hexdigest()
        tensor = self.model.inputs[0]
        try:
            return Example(name, {tensor.name: self.contract.encode(data, tensor.datatype)}, sha256=digest)
        except PictureError as exc:
            return Example(name, error=printable(f"{exc} [{exc.code}]"), sha256=digest)

    def _answer_rows(self, examples: Sequence[Example], outputs: Tensors) -> list[Row]:
        rows = self.contract.probabilities(outputs, self.model)
        if rows.shape != (len(examples), len(self.labels)) or not self.contract.are_probabilities(rows):
            raise GourmetError(
                f"{self.model.name} answered {len(examples)} photos with probabilities of shape "
                f"{list(rows.shape)}: `gourmet doctor` checks the model"
            )
        relevance = self.contract.relevance(outputs, self.model)
        shares = [None] * len(rows) if relevance is None else relevance.tolist()
        finer = self.contract.finer(outputs, len(rows))
        return [self._row_of_answer(*row) for row in zip(rows.tolist(), shares, finer, strict=True)]

    def _row_of_answer(
        self, probabilities: Sequence[float], relevance: float | None, finer: Sequence[Named]
    ) -> Row:
        answer = RankedLabels(
            self.contract,
            self.labels,
            tuple(probabilities),
            self.model.threshold,
            relevance,
            self.model.subject_threshold,
            tuple(finer),
        )
        return {
            "verdict": answer.verdict.text,
            "label": answer.label,
            "probability": round(answer.probability, 6),
            "sure": answer.sure,
            "threshold": answer.threshold,
            "relevant": answer.relevant,
            "doubtful": answer.doubtful,
            self.contract.subject: None if relevance is None else round(relevance, 6),
            "candidates": " or ".join(label for label, _ in answer.candidates) or None,
            "dish": answer.finer_name or None,
            "dishes": ", ".join(f"{name} {likely:.3f}" for name, likely in finer) or None,
            "probabilities": {
                label: round(share, 6) for label, share in zip(self.labels, probabilities, strict=True)
            },
        }

    def in_words(self, row: Row) -> str:
        if kind_of(row, self.contract.subject) != row["label"]:
            return str(row["verdict"])
        kind = f": {row['candidates'] or row['label']}" if row.get("dish") else ""
        return f"{row['verdict']}{kind}, {row['probability']:.0%}{'' if row['sure'] else NOT_SURE}"


def kind_of(row: Row, subject: str) -> str:
    """Return the label, or the word for a photo that may show something else, such as "not food"."""
    state: State = "irrelevant" if row.get("relevant") is False else "doubtful"
    return marks(subject)[state][2] if state == "irrelevant" or row.get("doubtful") else str(row["label"])


class GeneratedRows(ModelRows):
    """Generates texts from texts or photos: translations, captions."""

    within_s = 600.0
    in_flight = 2  # enough for the served loop to be full

    def __init__(
        self, url: str, kind: ExampleKind, options: Options, *, model: str | None, system: str | None = None
    ) -> None:
        """Connect to the `model`, or to a `system`'s."""
        super().__init__(url, model or system_for(kind, system).default_model)
        self._kind, self._system, self._options = kind, system, options
        self.named, self.made, together = _COLUMNS[kind]
        self.together = together if self.model.max_batch_size else 1

    @cached_property
    def system(self) -> Generation:
        return system_for(self._kind, self._system, self.model.system)

    @property
    def plan(self) -> Mapping[str, Any]:
        return {**super().plan, "system": self.system.name, **self._options}

    @cached_property
    def columns(self) -> Columns:
        sure: Mapping[str, type] = {"sure": bool} if self.model.threshold else {}
        columns = {self.named: str, self.made: str, **sure, "score": float, "warning": str}
        return {**columns, "error": str, "model": str, "version": str}

    def _read_example(self, name: str) -> Example:
        try:
            if self.system.example_kind == "picture":
                example = read_photo(name)
            else:
                example = name.encode(errors="surrogateescape")
            inputs = self.system.request_inputs(example, self.model, self._options)
        except ValueError as exc:
            return Example(name, error=printable(str(exc)))
        return Example(name, inputs, text=example)

    def _answer_rows(self, examples: Sequence[Example], outputs: Tensors) -> list[Row]:
        rows = []
        for number, example in enumerate(examples):
            one_row = {name: output[number : number + 1] for name, output in outputs.items()}
            answer = self.system.generated(one_row, self.model)
            if isinstance(self.system, WarnsOfAnswers):
                answer = self.system.with_warning(example.text, answer)
            row: dict[str, Any] = {self.made: answer.text, "score": answer.score}
            rows.append({**row, "warning": answer.warning or None, "sure": self.model.is_sure(answer)})
        return rows

    def in_words(self, row: Row) -> str:
        return f"{row[self.made]}{NOT_SURE if row.get('sure') is False else ''}"


def system_for(kind: ExampleKind, system: str | None = None, of_model: str = "") -> Generation:
    """Return the named system, the model's own, or the only one that is code; it answers with texts."""
    systems = {
        name: contract
        for name, contract in registry.load_all().items()
        if isinstance(contract, Generation) and contract.example_kind == kind
    }
    ours = [name for name in systems if not registry.is_data(name)]
    usual = ours[0] if len(ours) == 1 else ""
    name = system or (of_model if of_model in systems else usual)
    if name not in systems:
        raise UsageError(
            f"--system {name or '…'} does not answer a {kind} with a text; these do: {', '.join(systems)}"
        )
    return systems[name]


def read_photo(path: str) -> bytes:
    """Read a photo; raise ValueError if it cannot be read or is not a picture."""
    try:
        data = Path(path).read_bytes()
    except OSError as exc:
        raise ValueError(f"the file cannot be read: {exc.strerror or exc}") from exc
    parse_header(data)
    return data
