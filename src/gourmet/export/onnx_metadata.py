"""The metadata of an exported ONNX file, for people who have the file alone."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnx

from gourmet.repository.gate import ModelFile, Target


def with_metadata(content: bytes, system: str, license: str, **about: Any) -> bytes:
    """Return the content of an ONNX file with what is known of it.

    Protobuf joins messages that follow each other, so the graph and its weights stay as they are.
    """
    known = {"system": system, "license": license, "version": version("gourmetgram-triton"), **about}
    known = {key: value for key, value in known.items() if value}
    before = onnx.load_from_string(content)
    kept = [entry for entry in before.metadata_props if entry.key not in known]
    if len(kept) < len(before.metadata_props):  # a file that was deployed before; no key may repeat
        del before.metadata_props[:]
        before.metadata_props.extend(kept)
        content = before.SerializeToString()
    appended = onnx.ModelProto()
    for key, value in known.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        appended.metadata_props.add(key=key, value=text)
    return bytes(content + appended.SerializeToString())


def described(target: Target, system: str, license: str, **about: Any) -> Target:
    """Return the target with metadata in its ONNX files."""

    def write(file: ModelFile, path: Path) -> dict[str, Any]:
        form = file.write(path)
        if path.suffix == ".onnx":
            path.write_bytes(with_metadata(path.read_bytes(), system, license, **about))
        return form

    return replace(target, files=[replace(file, write=partial(write, file)) for file in target.files])
