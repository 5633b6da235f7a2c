"""A model's config as Triton itself reads, writes and answers it; the one place that has its protobuf."""

from __future__ import annotations

from typing import Any

from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2

Config = dict[str, Any]


def parse(text: str) -> Any:
    """The message of a config.pbtxt, whose generated class carries no types; raise ValueError."""
    try:
        return text_format.Parse(text, model_config_pb2.ModelConfig())
    except (text_format.ParseError, RecursionError) as exc:
        raise ValueError(str(exc)) from exc


def as_json(message: Any) -> Config:
    """A parsed config.pbtxt in the form of the server's own answers."""
    return dict(json_format.MessageToDict(message, preserving_proto_field_name=True))


def as_pbtxt(config: Config) -> str:
    """A config as the text of a config.pbtxt; fields of a newer server are named in a comment."""
    message = json_format.ParseDict(config, model_config_pb2.ModelConfig(), ignore_unknown_fields=True)
    text = str(text_format.MessageToString(message, as_utf8=True, use_short_repeated_primitives=True))
    unknown = config.keys() - message.DESCRIPTOR.fields_by_name.keys()
    left_out = ", ".join(sorted(name for name in unknown if config[name]))
    return f"# Left out, as this tritonclient does not know it: {left_out}\n{text}" if left_out else text
