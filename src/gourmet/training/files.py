"""Files that are whole or not there: written aside, then moved into place."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save_file

from gourmet.errors import GourmetError

Tensors = dict[str, torch.Tensor]


class BadWeights(GourmetError):
    """A file that holds no weights, or those of another network."""


@contextlib.contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """Yield a path to write to; what was written there replaces `path` only if nothing failed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield aside
        with aside.open("rb") as written:
            os.fsync(written.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


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
        with safetensors.safe_open(path, framework="pt") as opened:
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


def put_tensors(module: torch.nn.Module, tensors: Tensors, path: Path) -> None:
    """Load `tensors`, read from `path`, into `module`, or say how they do not fit."""
    want = module.state_dict()
    missing = sorted(want.keys() - tensors.keys())
    extra = sorted(tensors.keys() - want.keys())
    misshapen = sorted(k for k in want.keys() & tensors.keys() if want[k].shape != tensors[k].shape)
    for words, names in (("lacks", missing), ("also holds", extra), ("has another shape of", misshapen)):
        if names:
            raise BadWeights(f"{path} is of another network: it {words} {names[0]} and {len(names) - 1} more")
    module.load_state_dict(tensors)
