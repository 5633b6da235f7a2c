"""Write the served translator's checkpoint from its package, to train, deploy or measure it.

    .venv/bin/python -P scripts/translator_checkpoint.py            # writes runs/translator

Training keeps only weights that eight bits hold exactly, so that nothing is lost on the way: the file is the
one whose sha256 the package's manifest has, bit for bit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
import torch
from onnx import numpy_helper
from onnx.external_data_helper import uses_external_data

from gourmet.errors import GourmetError, printable
from gourmet.export.checkpoints import CONFIG
from gourmet.generation import package
from gourmet.repository.models import DEFAULT_REPOSITORY
from gourmet.served import manifest
from gourmet.served.manifest import PARAMETER, REQUIRED, sha256
from gourmet.systems.translator.network import build
from gourmet.systems.translator.serving import DECODER, ENCODER
from gourmet.systems.translator.tokenizer import FILES, Tokenizer
from gourmet.systems.translator.train import Config, shape_of
from gourmet.training.files import save_tensors
from gourmet.training.loop import BEST

# The parameter of a config whose files must match a manifest.
_ASKED_FOR = {"parameters": {PARAMETER: {"string_value": REQUIRED}}}
# Names of parts in the graphs, and in the network.
_NAMES = (
    (r"^(layers|embedding)", r"model.{part}.\1"),
    (r"embedding\.words$", "embed_tokens"),
    (r"embedding\.places$", "embed_positions"),
    (r"^memory\.across\.(\d+)\.(key|value)$", r"model.decoder.layers.\1.encoder_attn.\2"),
    (r"key$", "k_proj"),
    (r"value$", "v_proj"),
    (r"^words$", "lm_head"),
)


@click.command()
@click.option(
    "--version",
    type=click.Path(path_type=Path),
    default=DEFAULT_REPOSITORY / "translator" / "1",
    help="Folder of the served version.",
)
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/translator"), show_default=True)
def checkpoint(version: Path, out: Path) -> None:
    """Write the checkpoint that a served translator of ours was made of."""
    try:
        same = _write(version, out)
    except GourmetError as exc:
        raise click.ClickException(printable(str(exc))) from exc
    click.echo(f"{out / BEST}: {'bit for bit' if same else 'NOT'} the file that was deployed")


def _write(version: Path, out: Path) -> bool:
    """Write the checkpoint; return True if it is the one that was deployed."""
    files, facts = package.open_version(version, _ASKED_FOR), manifest.read_manifest(version)
    with package.opened_as("a translator"):
        tokenizer = Tokenizer({name: files[name] for name in FILES})
        about: dict[str, Any] = facts["network"]["shape"]
        deployed = facts["training"]["weights_sha256"]
        config = Config(**{key: value for key, value in about.items() if key in Config.__dataclass_fields__})
        shape = shape_of(config, tokenizer)
        tensors = dict[str, torch.Tensor]()
        for part, name in (("encoder", ENCODER), ("decoder", DECODER)):
            tensors.update(_tensors(part, files[name]))
        tensors["model.shared.weight"] = tensors["lm_head.weight"]
        network = build(shape)
        if lacking := set(dict(network.named_parameters(remove_duplicate=False))) - set(tensors):
            raise GourmetError(f"{version} has no {', '.join(sorted(lacking))}: it is not of eight bits")
        network.load_state_dict(tensors, strict=False)
    out.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        (out / name).write_bytes(files[name])
    (out / CONFIG).write_text(json.dumps(shape, indent=2) + "\n", encoding="utf-8")
    save_tensors(out / BEST, network.state_dict(), about)
    return bool(sha256(out / BEST) == deployed)


def _tensors(part: str, graph: bytes) -> Iterator[tuple[str, torch.Tensor]]:
    initializers = onnx.load_from_string(graph).graph.initializer
    if any(map(uses_external_data, initializers)):
        raise GourmetError("a graph of the package has weights in other files, which none of ours has")
    held = {initializer.name: numpy_helper.to_array(initializer) for initializer in initializers}
    for name, values in held.items():
        of, _, what = name.rpartition(".")
        if what not in ("weight", "bias") or not of:
            continue
        for pattern, instead in _NAMES:
            of = re.sub(pattern, instead.format(part=part), of)
        yield f"{of}.{what}", torch.from_numpy(_in_32_bits(name.rpartition(".")[0], values, held).copy())


def _in_32_bits(name: str, values: Any, held: Mapping[str, Any]) -> Any:
    if values.dtype != np.int8:
        return values
    if (scales := held.get(f"{name}.scales")) is not None:
        return (values.astype(np.float32) * scales).T
    return values.astype(np.float32) * held[f"{name}.scale"]


if __name__ == "__main__":
    checkpoint()
