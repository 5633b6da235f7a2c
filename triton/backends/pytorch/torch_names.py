"""Which of a config's inputs and outputs are which of a network's, as NVIDIA's backend reads their names.

Nothing here needs torch or Triton: the config is the dict that Triton hands out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gourmet.errors import GourmetError
from gourmet.runtime import batches

Config = Mapping[str, Any]

# Those that both numpy and torch have.
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
    """Raise GourmetError with everything that the config asks for and this backend lacks."""
    if problems := list(_problems(config)):
        raise GourmetError("; ".join(problems))


def _problems(config: Config) -> Iterator[str]:
    for role in ("input", "output"):
        if not config[role]:
            yield f"the config names no {role}s: TorchScript does not say what they are, so it has to"
        for declared in config[role]:
            if declared["data_type"] not in TYPES:
                yield (
                    f"{role} {declared['name']!r} is {declared['data_type']}; this backend carries "
                    f"{', '.join(TYPES)}"
                )
    if config.get("platform") not in (None, "", "pytorch_libtorch"):
        yield f"platform {config['platform']!r} is not supported: TorchScript is pytorch_libtorch"
    yield from batches.unsupported(config)
    if config.get("sequence_batching"):
        yield "sequence_batching is not supported"


def in_order(names: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """The config's inputs in the order of the network's `arguments`.

    They are named like the arguments, or by a number at their end as in INPUT__0; else the order is the
    config's.
    """
    if set(names) == set(arguments):
        return list(arguments)
    return by_number(names)


def by_number(names: Sequence[str]) -> list[str]:
    """The names in the order of the numbers at their ends, where all have one; else as they stand."""
    found = [_INDEXED.fullmatch(name) for name in names]
    numbers = {int(each[1]): each[0] for each in found if each}
    if len(numbers) < len(names):
        return list(names)
    if sorted(numbers) != list(range(len(names))):
        raise GourmetError(
            f"{', '.join(names)} have the numbers {', '.join(map(str, sorted(numbers)))} at their ends; "
            f"expected are 0 to {len(names) - 1}, each once"
        )
    return [numbers[place] for place in range(len(names))]
