"""Files of weights: ours, which say what they are, and anybody's. Tensors only: no code in them runs.

TorchScript is a program, which runs when it is opened, before anyone can look at its tensors. It is opened
only where `gourmet deploy` wrote it: its sha256 stands in a manifest of the checkout's model repository.
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
from typing import Any, Final

import safetensors
import torch
from safetensors.torch import save_file

from gourmet import repository
from gourmet.errors import GourmetError
from gourmet.runtime.files import written_aside
from gourmet.runtime.manifest import MANIFEST
from gourmet.runtime.reading import ZIP_ERRORS, check_weights, read_table

Tensors = dict[str, torch.Tensor]

# What training itself changes besides the parameters; any other buffer says what the network is.
_STATISTICS: Final = re.compile(r"running_(mean|var)$|num_batches_tracked$")


def save_tensors(path: Path, tensors: Tensors, about: dict[str, Any]) -> None:
    """Write `tensors` with `about` (anything JSON can say) in the header; what parts share, once."""
    once = {tensor.data_ptr(): name for name, tensor in reversed(tensors.items())}
    plain = {name: tensors[name].detach().cpu().contiguous() for name in reversed(once.values())}
    with written_aside(path) as aside:
        save_file(plain, aside, metadata={"about": json.dumps(about)})


def load_tensors(path: Path) -> tuple[Tensors, dict[str, Any]]:
    """The tensors in a .safetensors, plain .pth or served model.pt, and what `gourmet train` wrote of them.

    What training scripts wrap round their tensors is taken off: a dictionary with other things beside
    them, and the `module.` that DataParallel puts before every name.
    """
    check_weights(path)
    about: dict[str, Any] = {}
    try:
        if path.suffix == ".safetensors":
            found, about = _plain_tensors(path)
        elif _is_torchscript(path):
            found = deployed_tensors(path, repository.DEFAULT)
        else:
            found = _pickled_tensors(path)
    except (
        safetensors.SafetensorError,
        *ZIP_ERRORS,
        TypeError,
    ) as exc:
        reason = next(iter(str(exc).splitlines()), type(exc).__name__)
        raise GourmetError(f"{path} cannot be read as a file of weights: {reason}") from exc
    if not all(name.isprintable() for name in found):
        raise GourmetError(f"{path} has names of tensors with control characters in them: save it again")
    return {name.removeprefix("module."): tensor for name, tensor in found.items()}, about


def _plain_tensors(path: Path) -> tuple[Tensors, dict[str, Any]]:
    """Those of a .safetensors, whose size and places are checked as it is opened; nothing in it is code."""
    with safetensors.safe_open(path, framework="pt") as opened:
        about = json.loads((opened.metadata() or {}).get("about", "{}"))
        return {name: opened.get_tensor(name) for name in opened.keys()}, dict(about)  # noqa: SIM118


def _pickled_tensors(path: Path) -> Tensors:
    """Those of a .pth: torch reads tensors and plain values, and refuses what would run code."""
    try:
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (UnpicklingError, LookupError, EOFError) as exc:  # whose own words advise to run what is in it
        if "GLOBAL" in str(exc):
            raise ValueError(
                "it holds more than tensors, and loading it would run code out of it: save the weights "
                "alone, with torch.save(network.state_dict(), …)"
            ) from exc
        raise ValueError("it is not a file of weights that torch can read") from exc
    for wrapping in ("state_dict", "model_state_dict", "model"):
        if isinstance(found, Mapping) and isinstance(found.get(wrapping), Mapping):
            found = found[wrapping]
    if not isinstance(found, Mapping) or not found or not all(map(torch.is_tensor, found.values())):
        raise ValueError("it holds no dictionary of tensors by name, as network.state_dict() is one")
    return {str(name): tensor.detach().contiguous() for name, tensor in found.items()}


def _is_torchscript(path: Path) -> bool:
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def deployed_tensors(path: Path, models: Path) -> Tensors:
    """The tensors of a TorchScript file that was deployed into `models`; any other is refused unopened."""
    script = path.read_bytes()  # once: what is hashed is what is opened
    digest = hashlib.sha256(script).hexdigest()
    if digest not in _deployed(models):
        raise GourmetError(
            f"{path} is TorchScript, a program that would run when it is opened, and it was not deployed "
            "here: where you trust it, save its weights alone, with torch.save(network.state_dict(), …)"
        )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)  # it is what is served
        network = torch.jit.load(io.BytesIO(script), map_location="cpu")  # type: ignore[no-untyped-call]
    return dict(network.state_dict())


def _deployed(models: Path) -> set[str]:
    """The sha256 of each file that a manifest of the repository speaks of."""
    found = set()
    for path in models.glob(f"*/*/{MANIFEST}"):
        with contextlib.suppress(OSError, ValueError):  # what is served says itself what is wrong with one
            found.add(str(read_table(path).get("sha256")))
    return found


def check_about(path: Path, about: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Refuse `path` unless what it says `about` itself is what is expected."""
    if not about:
        raise GourmetError(f"{path} was not written by `gourmet train`: it says nothing about the network")
    for key, value in expected.items():
        if about.get(key) != value:
            raise GourmetError(f"{path} is of another network: its {key} is {about.get(key)}, not {value}")


def _differences(own: Tensors, given: Tensors) -> list[str]:
    """What is wrong with each tensor that is `given` for a network's own."""
    return [
        *(
            f"{name} of {list(given[name].shape)} instead of {list(each.shape)}"
            for name, each in own.items()
            if name in given and given[name].shape != each.shape
        ),
        *(f"no {name}" for name in own if name not in given and not _STATISTICS.search(name)),
        *(f"{name}, which it has not" for name in given if name not in own),
    ]


def put_tensors(module: torch.nn.Module, tensors: Tensors, path: Path) -> None:
    """Load `tensors`, read from `path`, into `module`, or say how they do not fit."""
    own = module.state_dict().items()
    shared = {each.data_ptr(): tensors[name] for name, each in own if name in tensors}
    tensors = tensors | {name: shared[each.data_ptr()] for name, each in own if each.data_ptr() in shared}
    fixed = {name: want.clone() for name, want in module.named_buffers() if not _STATISTICS.search(name)}
    try:
        module.load_state_dict(tensors)
    except RuntimeError as exc:
        differences = _differences(dict(module.state_dict()), tensors) or [str(exc).splitlines()[-1].strip()]
        raise GourmetError(
            f"{path} is of another network, or of one with other labels: {len(differences)} of its tensors "
            f"differ, such as {shorten(' and '.join(differences[:2]), 300)}"
        ) from exc
    for name, want in fixed.items():
        if not torch.allclose(module.get_buffer(name).double(), want.double()):
            raise GourmetError(
                f"{path} was trained for something else: its {name}, which training does not change, "
                "differs. Name weights of a run on data divided in the same way, or none"
            )
