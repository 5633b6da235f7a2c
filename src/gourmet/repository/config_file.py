"""A config.pbtxt in two parts: what people write, which stays, and below a line what versions bring.

The numbers of a version (a temperature, a threshold, the shape of a tensor) change with each deploy and
rollback. They stand in a part of their own, so that nothing has to be changed within what people wrote.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from gourmet.client.model_config import Config, as_json, as_pbtxt, parse
from gourmet.contracts import CALIBRATION_PARAMETERS
from gourmet.repository import CONFIG, RepositoryError, read_config, repository_text
from gourmet.runtime.manifest import PARAMETER, REQUIRED

# The digest tells a part that was changed by hand, which would be lost.
_LINE: Final = "# Generated with each version, and replaced with the next; write what is yours above. sha256 "
_TENSORS: Final = ("input", "output")


@dataclass(frozen=True)
class ConfigFile:
    """What is in the config.pbtxt of the folder `model`, or will be."""

    model: Path
    by_hand: str
    generated: Config

    @classmethod
    def read(cls, model: Path) -> ConfigFile:
        """Raise RepositoryError where Triton could not read it, or the generated part was changed by hand."""
        read_config(model)
        path = model / CONFIG
        by_hand, _, rest = repository_text(path).partition(_LINE)
        digest, _, generated = rest.partition("\n")
        if rest and digest != _digest(generated):
            raise RepositoryError(
                f"{path} was changed by hand below its line {_LINE.partition(',')[0]!r}, which the next "
                "version replaces: undo the change, or move what is yours above that line and delete the rest"
            )
        return cls(model, by_hand, as_json(parse(generated)))

    def with_version(self, calibration: Mapping[str, float], dims: Mapping[str, Sequence[int]]) -> ConfigFile:
        """With these parameters, and these shapes of the inputs and outputs that are generated.

        A network of which nothing was measured has none, and not those of the one before it.
        """
        if wrong := [name for name, value in calibration.items() if not math.isfinite(value)]:
            raise RepositoryError(
                f"{', '.join(wrong)} of {self.model.name} would be no number: calibrate again"
            )
        generated = copy.deepcopy(self.generated)
        before = generated.pop("parameters", {})
        parameters = {name: value for name, value in before.items() if name not in CALIBRATION_PARAMETERS}
        parameters |= {name: {"string_value": f"{value:.4f}"} for name, value in calibration.items()}
        if parameters:
            generated["parameters"] = parameters
        for tensor in (each for part in _TENSORS for each in generated.get(part, ())):
            tensor["dims"] = list(dims.get(tensor["name"], tensor["dims"]))
        return replace(self, generated=generated)

    def of_manifest(self, about: Mapping[str, Any]) -> ConfigFile:
        """With what the manifest of a version says that belongs to it."""
        generated = replace(self, generated=dict(about.get("config", self.generated)))
        calibration = {name: float(value) for name, value in about.get("calibration", {}).items()}
        return generated.with_version(calibration, about.get("dims", {}))

    def text(self) -> str:
        """Raise RepositoryError where a thing would stand in both parts."""
        if not self.generated:
            return self.by_hand
        if twice := _said(as_json(parse(self.by_hand))) & _said(self.generated):
            raise RepositoryError(
                f"{self.model / CONFIG} has {', '.join(sorted(twice))} written by hand, which would be "
                "generated with each version: delete that there, or delete the file to have it all generated"
            )
        generated = as_pbtxt(self.generated)
        by_hand = f"{self.by_hand.rstrip()}\n\n" if self.by_hand.strip() else ""
        return f"{by_hand}{_LINE}{_digest(generated)}\n{generated}"

    def texts(self) -> dict[str, str]:
        """By name, the text of config.pbtxt and those of configs/, which Triton can be told to prefer."""
        others = sorted((self.model / "configs").glob("*.pbtxt"))
        by_hand = {f"configs/{each.name}": repository_text(each).partition(_LINE)[0] for each in others}
        return {
            CONFIG: self.text(),
            **{name: replace(self, by_hand=its).text() for name, its in by_hand.items()},
        }


def _said(config: Config) -> set[str]:
    """What a config says, such that saying it in both parts would be a contradiction."""
    tensors = {f"{part} {tensor['name']!r}" for part in _TENSORS for tensor in config.get(part, ())}
    parameters = {f"parameter {key!r}" for key in config.get("parameters", ())}
    rest = {name for name, value in config.items() if value} - {*_TENSORS, "parameters"}
    return tensors | parameters | rest


def _digest(generated: str) -> str:
    return hashlib.sha256(generated.encode()).hexdigest()[:16]


LABELS_FILE: Final = "labels.txt"


def tensor(
    name: str,
    data_type: str,
    dims: Sequence[int],
    *,
    layout: str = "",
    has_labels: bool = False,
) -> Config:
    """An input or an output; its dims are those of one row where the model batches.

    Pictures have a `layout`, NCHW or NHWC.
    """
    return {
        "name": name,
        "data_type": f"TYPE_{data_type}",
        "dims": list(dims),
        **({"format": f"FORMAT_{layout}"} if layout else {}),
        **({"label_filename": LABELS_FILE} if has_labels else {}),
    }


def model_config(
    name: str,
    backend: str,
    max_batch_size: int,
    given: Config,
    answer: Config,
    *,
    kind: Literal["AUTO", "CPU"] = "AUTO",
    instances: int,
    parameters: Mapping[str, str],
) -> Config:
    """How Triton serves a model; `max_batch_size` 0 is a model whose tensors have all their dims."""
    # Without the manifest.json that is written with it, no version of it is loaded.
    parameters = {PARAMETER: REQUIRED, **parameters}
    return {
        "name": name,
        "backend": backend,
        "max_batch_size": max_batch_size,
        "input": [given],
        "output": [answer],
        # AUTO is the GPU where Triton has one, and the CPU elsewhere.
        "instance_group": [{"kind": f"KIND_{kind}", "count": instances}],
        "parameters": {key: {"string_value": value} for key, value in parameters.items()},
    }
