"""Files of weights: ours, which say what they are, and anybody's. Tensors only: no code in them runs."""

from __future__ import annotations

import json
import warnings
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file, save_file

from gourmet.errors import GourmetError
from gourmet.runtime.files import written_aside

Tensors = dict[str, torch.Tensor]


class BadWeights(GourmetError):
    """A file that holds no weights, or those of another network."""


def save_tensors(path: Path, tensors: Tensors, about: dict[str, Any]) -> None:
    """Write `tensors` with `about` (anything JSON can say) in the header."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with written_aside(path) as aside:
        save_file(plain, aside, metadata={"about": json.dumps(about)})


def read_about(path: Path) -> dict[str, Any]:
    """The header that `save_tensors` wrote."""
    return load_tensors(path, names=())[1]


def load_tensors(path: Path, names: tuple[str, ...] | None = None) -> tuple[Tensors, dict[str, Any]]:
    """The tensors in `path` (all, or those of `names`) and its header. Tensors only: no code runs."""
    try:
        # For torch the path is opened twice, between which a run's next checkpoint may take its place.
        with safetensors.safe_open(path, framework="np" if names == () else "pt") as opened:
            about = json.loads((opened.metadata() or {}).get("about", "null"))
            tensors = {name: opened.get_tensor(name) for name in (opened.keys() if names is None else names)}
    except FileNotFoundError as exc:
        raise BadWeights(f"{path} does not exist: train first, or name another file") from exc
    except (safetensors.SafetensorError, OSError, ValueError) as exc:
        raise BadWeights(f"{path} cannot be read as safetensors: {exc}") from exc
    if not isinstance(about, dict):
        raise BadWeights(
            f"{path} was not written by `gourmet train`: its header says nothing about the network"
        )
    return tensors, about


def load_described(
    path: Path, system: str, architecture: str, labels: Sequence[str]
) -> tuple[Tensors, dict[str, Any]]:
    """Like `load_tensors`, after checking that the file says it holds this network with these labels."""
    tensors, about = load_tensors(path)
    if about.get("system") != system or about.get("architecture") != architecture:
        raise BadWeights(
            f"{path} holds {about.get('architecture')} of the system {about.get('system')}, "
            f"not {architecture} of {system}"
        )
    if tuple(about["labels"]) != tuple(labels):
        raise BadWeights(f"{path} was trained on the labels {about['labels']}, not on {list(labels)}")
    return tensors, about


def is_ours(path: Path) -> bool:
    """Whether `gourmet train` wrote the file, so that it says itself what it is."""
    if path.suffix == ".safetensors" and path.is_file():
        try:
            with safetensors.safe_open(path, framework="pt") as opened:
                return "about" in (opened.metadata() or {})
        except (safetensors.SafetensorError, OSError):
            return False
    return not path.exists()  # which is said best by who looks for a training run


def foreign_tensors(path: Path) -> Tensors:
    """The weights in a file of any origin: safetensors, a plain .pth or a TorchScript file.

    What training scripts wrap round them is taken off: a dictionary with other things beside them, and
    the `module.` that DataParallel puts before every name.
    """
    if not path.is_file():
        raise BadWeights(f"{path} does not exist: train first, or name another file")
    found: object
    try:
        if path.suffix == ".safetensors":
            found = load_file(path)
        elif zipfile.is_zipfile(path) and _is_torchscript(path):
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)  # it is what is served
                found = dict(torch.jit.load(str(path), map_location="cpu").state_dict())  # type: ignore[no-untyped-call]
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except (UnpicklingError, KeyError, IndexError, EOFError) as exc:  # as for bytes of any other kind
        if "GLOBAL" not in str(exc):
            raise BadWeights(f"{path} is not a file of weights that torch can read") from exc
        raise BadWeights(
            f"{path} holds more than tensors, and loading it would run code out of it: save the weights "
            "alone, with torch.save(network.state_dict(), …)"
        ) from exc
    except (safetensors.SafetensorError, OSError, RuntimeError, ValueError) as exc:
        reason = next(iter(str(exc).splitlines()), type(exc).__name__)
        raise BadWeights(f"{path} cannot be read as a file of weights: {reason}") from exc
    for wrapping in ("state_dict", "model_state_dict", "model"):
        if isinstance(found, Mapping) and isinstance(found.get(wrapping), Mapping):
            found = found[wrapping]
    if not isinstance(found, Mapping) or not found or not all(map(torch.is_tensor, found.values())):
        raise BadWeights(f"{path} holds no dictionary of tensors by name, as network.state_dict() is one")
    return {str(name).removeprefix("module."): tensor for name, tensor in found.items()}


def _is_torchscript(path: Path) -> bool:
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def put_tensors(module: torch.nn.Module, tensors: Tensors, path: Path) -> None:
    """Load `tensors`, read from `path`, into `module`, or say how they do not fit."""
    want = module.state_dict()
    # Counters of batches that older files lack; nothing that is served depends on them.
    counters = {k: v for k, v in want.items() if k.endswith("num_batches_tracked") and k not in tensors}
    tensors = {**tensors, **counters}
    missing, extra = want.keys() - tensors.keys(), tensors.keys() - want.keys()
    if missing or extra:
        raise BadWeights(
            f"{path} is of another network: it lacks {_some(k for k in want if k in missing)}, "
            f"and has {_some(k for k in tensors if k in extra)} besides"
        )
    for name, tensor in want.items():
        if tensor.shape != tensors[name].shape:
            raise BadWeights(
                f"{path} is of another network, or of one with other labels: its {name} is "
                f"{list(tensors[name].shape)}, and {list(tensor.shape)} is wanted"
            )
    module.load_state_dict(tensors)


def _some(names: Iterable[str]) -> str:
    """The first of `names`, and how many more there are."""
    first = list(names)
    more = f" and {len(first) - 3} more" if len(first) > 3 else ""
    return f"{', '.join(first[:3])}{more}" if first else "nothing"
