"""Model configs as protobuf text, as JSON and in a sentence. Only this module uses Triton's protobuf."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gourmet.served.instances import (
    ENGINE_PARAMETER,
    FP32,
    ONNX_RUNTIME,
    PRECISION_PARAMETER,
    THREADS_PARAMETER,
    parameter,
)

Config = dict[str, Any]


def parse(text: str) -> Any:
    """Parse a config.pbtxt; raise ValueError. The message's generated class has no types."""
    from google.protobuf import text_format

    try:
        return text_format.Parse(text, _empty())
    except (text_format.ParseError, RecursionError) as exc:
        raise ValueError(str(exc)) from exc


def as_json(message: Any) -> Config:
    """Return a parsed config.pbtxt in the form of the server's own answers."""
    from google.protobuf import json_format

    return dict(json_format.MessageToDict(message, preserving_proto_field_name=True))


def as_pbtxt(config: Config) -> str:
    """Return a config as the text of a config.pbtxt; a comment names fields of a newer server."""
    from google.protobuf import json_format, text_format

    message = json_format.ParseDict(config, _empty(), ignore_unknown_fields=True)
    text = str(text_format.MessageToString(message, as_utf8=True, use_short_repeated_primitives=True))
    unknown = config.keys() - message.DESCRIPTOR.fields_by_name.keys()
    left_out = ", ".join(sorted(name for name in unknown if config[name]))
    return f"# Left out, as this tritonclient does not know it: {left_out}\n{text}" if left_out else text


def summary(config: Mapping[str, Any]) -> str:
    """Describe a config in one line."""
    placed = ", ".join(map(_placed, config.get("instance_group") or [])) or "instances left to Triton"
    threads = parameter(config, THREADS_PARAMETER)
    if threads and threads != "0":
        placed += f", {_counted(int(threads), 'thread')} each"
    if (engine := parameter(config, ENGINE_PARAMETER)) not in ("", ONNX_RUNTIME):
        placed += f", run by {engine}"
    if (precision := parameter(config, PRECISION_PARAMETER)) not in ("", FP32):
        placed += f", in {precision}"
    cache = ["answers cached"] if config.get("response_cache", {}).get("enable") else []
    return "; ".join([placed, *_batches(config), *cache])


def merges(batching: Mapping[str, Any]) -> bool:
    """Return True if waiting requests share a batch; with preferred size 1 only the queue policy counts."""
    return bool(batching.get("preferred_batch_size") != [1])


def _empty() -> Any:
    from tritonclient.grpc import model_config_pb2

    return model_config_pb2.ModelConfig()


def _placed(group: Mapping[str, Any]) -> str:
    gpus = ", ".join(map(str, group.get("gpus", [])))
    kind = str(group.get("kind", "KIND_AUTO")).removeprefix("KIND_")
    words = {"CPU": "on the CPU", "GPU": f"on GPU {gpus}" if gpus else "on each GPU"}
    return f"{_counted(int(group.get('count', 1)), 'instance')} {words.get(kind, f'of kind {kind}')}"


def _batches(config: Mapping[str, Any]) -> list[str]:
    if not (rows := config.get("max_batch_size", 0)):
        return ["no batches"]
    parts, batching = [f"batches of up to {_counted(rows, 'row')}"], config.get("dynamic_batching")
    if batching is None:
        return [*parts, "no dynamic batching"]
    if not merges(batching):
        return [*parts, "requests not merged (preferred batch 1)"]
    delay_us = int(batching.get("max_queue_delay_microseconds", 0))
    waiting = f", waiting up to {delay_us} µs" if delay_us else " without waiting"
    sizes = " or ".join(map(str, batching.get("preferred_batch_size", [])))
    return [*parts, f"dynamic batching{waiting}{f', preferably {sizes}' if sizes else ''}"]


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
