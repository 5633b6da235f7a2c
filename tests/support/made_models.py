"""Models that tests make: the parts of their configs, and models in Python."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ONE_INSTANCE: Final = "instance_group [ { kind: KIND_CPU count: 1 } ]"


def tensors(role: str, *names: str, kind: str = "FP32", dims: object = "[ 2 ]") -> str:
    """The inputs or outputs of these names."""
    entries = ", ".join(f'{{ name: "{name}" data_type: TYPE_{kind} dims: {dims} }}' for name in names)
    return f"{role} [ {entries} ]\n"


def parameters(**named: str) -> str:
    entries = (f'parameters {{ key: "{k}" value: {{ string_value: "{v}" }} }}\n' for k, v in named.items())
    return "".join(entries)


def python_model(folder: Path, code: str, *config: str) -> None:
    """Write a model of the Python backend, of one instance."""
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "1" / "model.py").write_text(code)
    (folder / "config.pbtxt").write_text("\n".join(('backend: "python"', ONE_INSTANCE, *config)))
