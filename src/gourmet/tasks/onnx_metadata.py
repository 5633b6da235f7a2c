"""The metadata of an exported ONNX file, for people who have the file alone."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnx

from gourmet.deploying.target import Target


def metadata(system: str, license: str, **about: Any) -> bytes:
    """Return bytes to append to an ONNX file.

    Protobuf joins messages that follow each other, so the graph and its weights stay as they are.
    """
    said = {"system": system, "license": license, "version": version("gourmetgram-triton"), **about}
    model = onnx.ModelProto()
    for key, value in said.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if text:
            model.metadata_props.add(key=key, value=text)
    return bytes(model.SerializeToString())


def with_metadata(target: Target, appended: bytes) -> Target:
    """The same target, whose ONNX files end with `appended`."""

    def build(path: Path) -> dict[str, Any]:
        form = target.build(path)
        if path.suffix == ".onnx":
            with path.open("ab") as file:
                file.write(appended)
        return form

    return replace(target, build=build, also=[with_metadata(each, appended) for each in target.also])
