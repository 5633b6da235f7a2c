"""What a deployed network brings along into its model's config.pbtxt, comments left as they are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from gourmet.repository import RepositoryError
from gourmet.runtime.files import written_aside


def set_parameters(config: Path, values: Mapping[str, str]) -> None:
    """Write `values` into the parameters of the file `config`."""
    text = config.read_text(encoding="utf-8")
    for key, value in values.items():
        entry = rf'(key:\s*"{re.escape(key)}"\s*,?\s*value:?\s*\{{\s*string_value:\s*)"[^"]*"'
        text, found = re.subn(entry, rf'\g<1>"{value}"', text)
        if not found:
            text += f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}\n'
    try:
        parsed = text_format.Parse(text, model_config_pb2.ModelConfig())
    except text_format.ParseError as exc:
        raise RepositoryError(f"{config} cannot take the parameters {dict(values)}: {exc}") from exc
    for key, value in values.items():
        if parsed.parameters[key].string_value != value:
            raise RepositoryError(f"{config} sets the parameter {key} in a way that cannot be changed here")
    with written_aside(config) as aside:
        aside.write_text(text, encoding="utf-8")
