"""Read and write files of weights, ours and those of other programs. Only tensors are read: no code runs.

TorchScript is a program that runs when it is opened. It is opened only if `gourmet deploy` wrote it: its
sha256 is in a manifest of the checkout's model repository.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from textwrap import shorten
from types import ModuleType
from typing import Any, Final

import safetensors
import torch
from safetensors.torch import save_file

from gourmet import repository
from gourmet.errors import GourmetError
from gourmet.served.files import written_aside
from gourmet.served.manifest import MANIFEST
from gourmet.served.reading import ZIP_ERRORS, check_weights, read_table

Tensors = dict[str, torch.Tensor]

# Buffers that training changes. All other buffers identify the network.
_STATISTICS: Final = re.compile(r"running_(mean|var)$|num_batches_tracked$")


def save_tensors(path: Path, tensors: Tensors, about: dict[str, Any]) -> None:
    """Write `tensors`, with `about` as JSON in the header. Shared tensors are written once."""
    once = {tensor.data_ptr(): name for name, tensor in reversed(tensors.items())}
    plain = {name: tensors[name].detach().cpu().contiguous() for name in reversed(once.values())}
    with written_aside(path) as aside:
        save_file(plain, aside, metadata={"about": json.dumps(about)})


def load_tensors(path: Path) -> tuple[Tensors, dict[str, Any]]:
    """Return the tensors of a .safetensors, .pth or served model.pt, and the facts that `gourmet train`
    wrote.

    Wrappers of training scripts are removed: a dictionary around the tensors, and the prefix `module.` of
    DataParallel.
    """
    check_weights(path)
    about: dict[str, Any] = {}
    try:
        if path.suffix == ".safetensors":
            tensors, about = _plain_tensors(path)
        elif _is_torchscript(path):
            tensors = deployed_tensors(path, repository.DEFAULT)
        else:
            tensors = _pickled_tensors(path)
    except (
        safetensors.SafetensorError,
        *ZIP_ERRORS,
        TypeError,
    ) as exc:
        reason = next(iter(str(exc).splitlines()), type(exc).__name__)
        raise GourmetError(f"{path} cannot be read as a file of weights: {reason}") from exc
    if not all(name.isprintable() for name in tensors):
        raise GourmetError(f"{path} has tensor names with control characters: save it again with other names")
    return {name.removeprefix("module."): tensor for name, tensor in tensors.items()}, about


def _plain_tensors(path: Path) -> tuple[Tensors, dict[str, Any]]:
    """Read a .safetensors: opening it checks sizes and offsets, and it has no code."""
    with safetensors.safe_open(path, framework="pt") as opened:
        about = json.loads((opened.metadata() or {}).get("about", "{}"))
        return {name: opened.get_tensor(name) for name in opened.keys()}, dict(about)  # noqa: SIM118


def _pickled_tensors(path: Path) -> Tensors:
    """Read a .pth: torch reads tensors and plain values, and refuses code."""
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (UnpicklingError, LookupError, EOFError) as exc:  # torch's message advises to run the code
        if "GLOBAL" in str(exc):
            raise ValueError(
                "it holds more than tensors, and loading it would run code from the file: save the weights "
                "alone, with torch.save(network.state_dict(), …)"
            ) from exc
        raise ValueError("it is not a file of weights that torch can read") from exc
    for wrapper in ("state_dict", "model_state_dict", "model"):
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
    if not isinstance(content, Mapping) or not content or not all(map(torch.is_tensor, content.values())):
        raise ValueError("it holds no dictionary of tensors by name, such as network.state_dict()")
    return {str(name): tensor.detach().contiguous() for name, tensor in content.items()}


def _is_torchscript(path: Path) -> bool:
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def deployed_tensors(path: Path, models: Path) -> Tensors:
    """Return the tensors of a TorchScript file deployed into `models`; do not open any other."""
    script = path.read_bytes()  # read once, so that the hashed bytes are opened
    digest = hashlib.sha256(script).hexdigest()
    if digest not in _deployed(models):
        raise GourmetError(
            f"{path} is TorchScript, a program that would run when it is opened, and it was not deployed "
            "here: if you trust it, save its weights alone, with torch.save(network.state_dict(), …)"
        )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)
        network = torch.jit.load(io.BytesIO(script), map_location="cpu")  # type: ignore[no-untyped-call]
    return dict(network.state_dict())


def _deployed(models: Path) -> set[str]:
    """Return the sha256 of each model file in the repository's manifests."""
    digests = set()
    for path in models.glob(f"*/*/{MANIFEST}"):
        with contextlib.suppress(OSError, ValueError):  # Triton and the doctor report a bad manifest
            digests.add(str(read_table(path).get("sha256")))
    return digests


def check_about(path: Path, about: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Raise GourmetError unless the facts `about` the weights in `path` are the expected ones."""
    if not about:
        raise GourmetError(f"{path} was not written by `gourmet train`: it does not name its network")
    for key, value in expected.items():
        if about.get(key) != value:
            raise GourmetError(f"{path} is of another network: its {key} is {about.get(key)}, not {value}")


def _differences(expected: Tensors, loaded: Tensors) -> list[str]:
    """Return how the loaded tensors differ from a network's own, in words."""
    return [
        *(
            f"{name} of {list(loaded[name].shape)} instead of {list(tensor.shape)}"
            for name, tensor in expected.items()
            if name in loaded and loaded[name].shape != tensor.shape
        ),
        *(f"no {name}" for name in expected if name not in loaded and not _STATISTICS.search(name)),
        *(f"an unexpected {name}" for name in loaded if name not in expected),
    ]


def put_tensors(module: torch.nn.Module, tensors: Tensors, path: Path) -> None:
    """Load `tensors`, read from `path`, into `module`; raise GourmetError if they do not fit."""
    own = module.state_dict().items()
    shared = {tensor.data_ptr(): tensors[name] for name, tensor in own if name in tensors}
    tensors = tensors | {
        name: shared[tensor.data_ptr()] for name, tensor in own if tensor.data_ptr() in shared
    }
    fixed = {name: buffer.clone() for name, buffer in module.named_buffers() if not _STATISTICS.search(name)}
    try:
        module.load_state_dict(tensors)
    except RuntimeError as exc:
        differences = _differences(dict(module.state_dict()), tensors) or [str(exc).splitlines()[-1].strip()]
        raise GourmetError(
            f"{path} is of another network, or of one with other labels: {len(differences)} of its tensors "
            f"differ, such as {shorten(' and '.join(differences[:2]), 300)}"
        ) from exc
    for name, buffer in fixed.items():
        if not torch.allclose(module.get_buffer(name).double(), buffer.double()):
            raise GourmetError(
                f"{path} was trained for something else: its {name}, which training does not change, "
                "differs. Name weights of a run on data divided in the same way, or none"
            )


def torchvision() -> ModuleType:
    """Import torchvision; one built for CUDA misses two operators beside a CPU-only torch, as from PyPI."""
    try:
        import torchvision as imported
    except RuntimeError:
        # Only after the failure: a torchvision that has the operators ends the process if they are declared.
        for operator in ("nms", "qnms"):
            schema = "(Tensor boxes, Tensor scores, float threshold) -> Tensor"
            torch.library.define(f"torchvision::{operator}", schema)
        import torchvision as imported
    module: ModuleType = imported
    return module
