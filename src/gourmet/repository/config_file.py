"""A config.pbtxt in two parts: the part written by hand stays; the part below a line belongs to a version.

The numbers of a version (a temperature, a threshold, the shape of a tensor) change with each deploy and
rollback. They have a part of their own, so that the part written by hand is never edited.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from gourmet.contracts import CALIBRATION_PARAMETERS, COVERAGE_PARAMETER
from gourmet.repository.models import CONFIG, RepositoryError, read_config, repository_text
from gourmet.served.manifest import PARAMETER, REQUIRED
from gourmet.triton_client.model_config import Config, as_json, as_pbtxt, parse

# The digest shows whether the generated part was changed by hand: the next version would overwrite that.
_LINE: Final = "# Generated with each version, and replaced with the next; write what is yours above. sha256 "
_TENSORS: Final = ("input", "output")


@dataclass(frozen=True)
class ConfigFile:
    """The content of the config.pbtxt of the folder `model`."""

    model: Path
    by_hand: str
    generated: Config

    @classmethod
    def read(cls, model: Path) -> ConfigFile:
        """Read the file; raise RepositoryError if it is invalid, or its generated part was edited."""
        read_config(model)
        path = model / CONFIG
        by_hand, _, rest = repository_text(path).partition(_LINE)
        digest, _, generated = rest.partition("\n")
        if rest and digest != _digest(generated):
            raise RepositoryError(
                f"{path} was changed by hand below its line {_LINE.partition(',')[0]!r}, and the next "
                "version replaces that part: undo the change, or move it above that line and delete the rest"
            )
        return cls(model, by_hand, as_json(parse(generated)))

    def with_version(
        self, calibration: Mapping[str, float | str], dims: Mapping[str, Sequence[int]]
    ) -> ConfigFile:
        """Return the config with a version's calibration and its shapes of generated inputs and outputs.

        Without calibration, the values of the previous version are removed.
        """
        numbers = {name: value for name, value in calibration.items() if not isinstance(value, str)}
        if wrong := [name for name, value in numbers.items() if not math.isfinite(value)]:
            raise RepositoryError(
                f"{', '.join(wrong)} of {self.model.name} is not a finite number: calibrate again"
            )
        generated = copy.deepcopy(self.generated)
        before = generated.pop("parameters", {})
        parameters = {name: value for name, value in before.items() if name not in CALIBRATION_PARAMETERS}
        texts = {name: f"{value:.4f}" for name, value in numbers.items()}
        texts |= {name: value for name, value in calibration.items() if isinstance(value, str) and value}
        parameters |= {name: {"string_value": text} for name, text in texts.items()}
        if parameters:
            generated["parameters"] = parameters
        for tensor in (tensor for part in _TENSORS for tensor in generated.get(part, ())):
            tensor["dims"] = list(dims.get(tensor["name"], tensor["dims"]))
        return replace(self, generated=generated)

    def of_manifest(self, manifest: Mapping[str, Any]) -> ConfigFile:
        """Return the config with the values of a version's manifest."""
        generated = replace(self, generated=dict(manifest.get("config", self.generated)))
        calibration = {
            name: str(value) if name == COVERAGE_PARAMETER else float(value)
            for name, value in manifest.get("calibration", {}).items()
        }
        return generated.with_version(calibration, manifest.get("dims", {}))

    def text(self) -> str:
        """Return the text of the file; raise RepositoryError if both parts set the same field."""
        if not self.generated:
            return self.by_hand
        if twice := _fields(as_json(parse(self.by_hand))) & _fields(self.generated):
            raise RepositoryError(
                f"{self.model / CONFIG} sets {', '.join(sorted(twice))} by hand, but that is generated with "
                "each version: delete it there, or delete the file to generate it all"
            )
        generated = as_pbtxt(self.generated)
        by_hand = f"{self.by_hand.rstrip()}\n\n" if self.by_hand.strip() else ""
        return f"{by_hand}{_LINE}{_digest(generated)}\n{generated}"

    def texts(self) -> dict[str, str]:
        """Return the texts of config.pbtxt and of the variants in configs/, by their paths."""
        variants = sorted((self.model / "configs").glob("*.pbtxt"))
        by_hand = {f"configs/{path.name}": repository_text(path).partition(_LINE)[0] for path in variants}
        return {
            CONFIG: self.text(),
            **{name: replace(self, by_hand=part).text() for name, part in by_hand.items()},
        }


def _fields(config: Config) -> set[str]:
    """Return the names of the fields that only one part may set."""
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
    labels_file: str = "",
) -> Config:
    """Return the config of an input or an output. If the model batches, `dims` are those of one row.

    Pictures have a `layout`, NCHW or NHWC.
    """
    return {
        "name": name,
        "data_type": f"TYPE_{data_type}",
        "dims": list(dims),
        **({"format": f"FORMAT_{layout}"} if layout else {}),
        **({"label_filename": labels_file} if labels_file else {}),
    }


def model_config(
    name: str,
    backend: str,
    max_batch_size: int,
    input_tensor: Config,
    *output_tensors: Config,
    kind: Literal["AUTO", "CPU"] = "AUTO",
    instances: int,
    parameters: Mapping[str, str],
) -> Config:
    """Return a model's config. With `max_batch_size` 0, tensors have no batch dimension."""
    # No version is loaded without the manifest.json of its deploy.
    parameters = {PARAMETER: REQUIRED, **parameters}
    return {
        "name": name,
        "backend": backend,
        "max_batch_size": max_batch_size,
        "input": [input_tensor],
        "output": list(output_tensors),
        # AUTO: the GPU if Triton has one, otherwise the CPU.
        "instance_group": [{"kind": f"KIND_{kind}", "count": instances}],
        "parameters": {key: {"string_value": value} for key, value in parameters.items()},
    }
