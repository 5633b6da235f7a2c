"""Files of weights: ours, which say what they are, and anybody's. Tensors only: no code in them runs."""

from __future__ import annotations

import json
import re
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Final

import safetensors
import torch
from safetensors.torch import save_file

from gourmet.errors import GourmetError
from gourmet.runtime.files import written_aside

Tensors = dict[str, torch.Tensor]

# What training itself changes besides the parameters; any other buffer says what the network is.
_STATISTICS: Final = re.compile(r"running_(mean|var)$|num_batches_tracked$")


class BadWeights(GourmetError):
    """A file that holds no weights, or those of another network."""


def save_tensors(path: Path, tensors: Tensors, about: dict[str, Any]) -> None:
    """Write `tensors` with `about` (anything JSON can say) in the header."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with written_aside(path) as aside:
        save_file(plain, aside, metadata={"about": json.dumps(about)})


def load_tensors(path: Path) -> tuple[Tensors, dict[str, Any]]:
    """The tensors in a file of any origin, and what it says about them, if `gourmet train` wrote it.

    A file is safetensors, a plain .pth or TorchScript. What training scripts wrap round their tensors is
    taken off: a dictionary with other things beside them, and the `module.` that DataParallel puts before
    every name.
    """
    if not path.is_file():
        raise BadWeights(f"{path} does not exist: train first, or name another file")
    about: dict[str, Any] = {}
    found: object
    try:
        if path.suffix == ".safetensors":
            with safetensors.safe_open(path, framework="pt") as opened:
                about = json.loads((opened.metadata() or {}).get("about", "{}"))
                found = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        elif _is_torchscript(path):
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
    return {str(name).removeprefix("module."): tensor for name, tensor in found.items()}, about


def _is_torchscript(path: Path) -> bool:
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def check_about(
    path: Path, about: Mapping[str, Any], system: str, architecture: str, labels: Sequence[str]
) -> None:
    """Refuse `path` unless what it says `about` itself is that it holds this network with these labels."""
    if not about:
        raise BadWeights(f"{path} was not written by `gourmet train`: it says nothing about the network")
    if about.get("system") != system or about.get("architecture") != architecture:
        raise BadWeights(
            f"{path} holds {about.get('architecture')} of the system {about.get('system')}, "
            f"not {architecture} of {system}"
        )
    if tuple(about["labels"]) != tuple(labels):
        raise BadWeights(f"{path} was trained on the labels {about['labels']}, not on {list(labels)}")


def put_tensors(module: torch.nn.Module, tensors: Tensors, path: Path) -> None:
    """Load `tensors`, read from `path`, into `module`, or say how they do not fit."""
    want = module.state_dict()
    # Older files lack counters of batches, on which nothing that is served depends.
    missing = [name for name in want if name not in tensors and not name.endswith("num_batches_tracked")]
    extra = [name for name in tensors if name not in want]
    if missing or extra:
        raise BadWeights(
            f"{path} is of another network: it lacks {_some(missing)}, and has {_some(extra)} besides"
        )
    fixed = {name for name, _ in module.named_buffers() if not _STATISTICS.search(name)}
    for name, tensor in tensors.items():
        if tensor.shape != want[name].shape:
            raise BadWeights(
                f"{path} is of another network, or of one with other labels: its {name} is "
                f"{list(tensor.shape)}, and {list(want[name].shape)} is wanted"
            )
        if name in fixed and not torch.allclose(tensor.cpu().double(), want[name].cpu().double()):
            raise BadWeights(
                f"{path} was trained for something else: its {name}, which training does not change, "
                "differs. Name weights of a run on data divided in the same way, or none"
            )
    module.load_state_dict(tensors)


def _some(names: Sequence[str]) -> str:
    """The first of `names`, and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}" if names else "nothing"
