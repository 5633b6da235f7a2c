"""Match the inputs and outputs of a config with those of a network, by the rules of NVIDIA's backend.

`config` is the dictionary that Triton passes to a model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gourmet.errors import GourmetError
from gourmet.runtime import batches

Config = Mapping[str, Any]

# The types that both numpy and torch have.
TYPES: Final = {
    "TYPE_BOOL": "bool",
    "TYPE_UINT8": "uint8",
    "TYPE_INT8": "int8",
    "TYPE_INT16": "int16",
    "TYPE_INT32": "int32",
    "TYPE_INT64": "int64",
    "TYPE_FP16": "float16",
    "TYPE_FP32": "float32",
    "TYPE_FP64": "float64",
}
_INDEXED: Final = re.compile(r".*__(\d+)")


def check(config: Config) -> None:
    """Raise GourmetError with everything in the config that this backend does not support."""
    if problems := list(_problems(config)):
        raise GourmetError("; ".join(problems))


def _problems(config: Config) -> Iterator[str]:
    for role in ("input", "output"):
        if not config[role]:
            yield f"the config has no {role}s: add them, since a TorchScript file does not describe them"
        for declared in config[role]:
            if declared["data_type"] not in TYPES:
                yield (
                    f"{role} {declared['name']!r} is {declared['data_type']}; this backend supports "
                    f"{', '.join(TYPES)}"
                )
    if config.get("platform") not in (None, "", "pytorch_libtorch"):
        yield f"platform {config['platform']!r} is not supported: TorchScript is pytorch_libtorch"
    yield from batches.unsupported(config)
    if config.get("sequence_batching"):
        yield "sequence_batching is not supported"


def in_order(names: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """Return the config's inputs in the order of the network's `arguments`.

    Their names are those of the arguments or end in numbers, as in INPUT__0; otherwise the config's order
    counts.
    """
    if set(names) == set(arguments):
        return list(arguments)
    return by_number(names)


def by_number(names: Sequence[str]) -> list[str]:
    """Return the names in the order of the numbers at their ends; unchanged if a name has none."""
    matches = [_INDEXED.fullmatch(name) for name in names]
    numbered = {int(match[1]): match[0] for match in matches if match}
    if len(numbered) < len(names):
        return list(names)
    if sorted(numbered) != list(range(len(names))):
        raise GourmetError(
            f"{', '.join(names)} end in the numbers {', '.join(map(str, sorted(numbered)))}; "
            f"they must be 0 to {len(names) - 1}, each once"
        )
    return [numbered[number] for number in range(len(names))]
