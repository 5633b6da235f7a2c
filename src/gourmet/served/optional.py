"""Packages that only some verbs need, and the command that installs them."""

from __future__ import annotations

import importlib
from typing import Any, Final

from gourmet.errors import UsageError
from gourmet.served.files import IS_INSTALLED

# The packages of requirements/train.txt that `make up` does not install.
_TRAIN: Final = frozenset(
    [
        "huggingface_hub",
        "onnx",
        "sacrebleu",
        "safetensors",
        "scipy",
        "sklearn",
        "torch",
        "torchvision",
        "transformers",
    ]
)


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra of this project, in a checkout or from a wheel."""
    if IS_INSTALLED:
        return f"pip install 'gourmetgram-triton[{extra}]'"
    target = {"train": "train-setup", "lab": "setup-lab"}.get(extra)
    return (
        f"make {target}"
        if target
        else f"pip install -c requirements/constraints.txt -r requirements/{extra}.txt"
    )


def optional(module: str, what: str, extra: str, otherwise: str = "") -> Any:
    """Import a module that `what` needs; raise UsageError with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise _missing(module, what, extra, otherwise) from None


def missing(error: ModuleNotFoundError) -> UsageError | None:
    """Return the UsageError for a missing package of the extra `train`; None for other packages."""
    package = str(error.name).partition(".")[0]
    if package == "onnx":  # 20 MB; the extra `train` has torch, too
        pin = "" if IS_INSTALLED else "-c requirements/constraints.txt "
        return UsageError(
            f"this verb needs the package onnx, which is not installed here: run `pip install {pin}onnx`"
        )
    return _missing(package, "this verb", "train") if package in _TRAIN else None


def _missing(module: str, what: str, extra: str, otherwise: str = "") -> UsageError:
    return UsageError(
        f"{what} needs the package {module.partition('.')[0]}, which is not installed here: "
        f"run `{how_to_install(extra)}`{otherwise}"
    )
