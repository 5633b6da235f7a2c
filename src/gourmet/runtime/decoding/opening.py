"""A version of a served model that generates, opened: its network, and the room with its loop."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gourmet.runtime import malloc
from gourmet.runtime.decoding import package
from gourmet.runtime.decoding.answers import GenerationServing, ServedNetwork
from gourmet.runtime.decoding.room import CONTINUOUS_PARAMETER, GenerationRoom
from gourmet.runtime.instances import cpu_threads, integer_parameter, parameter

# Rows that go through a step together, unless the config says otherwise.
_ROWS: Final = 16
_ROWS_PARAMETER: Final = "rows_at_once"


def opened(
    serving: GenerationServing, version: Path, config: Mapping[str, Any]
) -> tuple[ServedNetwork, GenerationRoom]:
    """Raise GourmetError where its files are not those of its manifest, or cannot be used."""
    network = serving.open(package.open_version(version, config), cpu_threads(config))
    rows = integer_parameter(config, _ROWS_PARAMETER) or _ROWS
    malloc.give_back()  # of the files, half of what it has
    words = network.vocabulary
    continuous = parameter(config, CONTINUOUS_PARAMETER) != "off"
    room = GenerationRoom(
        network.engine, start=words.start, end=words.end, max_rows=rows, continuous=continuous
    )
    return network, room
