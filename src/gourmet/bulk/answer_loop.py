"""A model that generates, asked in this process: the graphs and the loop that it has in Triton."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gourmet.client.errors import InvalidRequest
from gourmet.contracts import SYSTEM_PARAMETER, Tensors
from gourmet.errors import GourmetError
from gourmet.pictures.errors import DecodersBusy
from gourmet.runtime.decoding.answers import GenerationServing, ServedNetwork, output_tensors, wait_for
from gourmet.runtime.decoding.opening import opened
from gourmet.runtime.decoding.room import GenerationRoom
from gourmet.runtime.instances import parameter
from gourmet.systems import registry


class AnswerLoop:
    """Opened when it is first asked, since a process that only hands work to others needs no network."""

    def __init__(self, version: Path, config: Mapping[str, Any]) -> None:
        self._version, self._config = version, config
        self._lock = threading.Lock()
        self._open: tuple[ServedNetwork, GenerationRoom] | None = None

    def ask(self, inputs: Tensors) -> tuple[Tensors, str]:
        """The outputs for a request's rows; raises InvalidRequest, as a client of Triton does."""
        network, room = self._opened()
        try:
            asked = network.requested({name: list(rows.ravel()) for name, rows in inputs.items()})
            answers = wait_for(asked, network, room)
        except ValueError as exc:
            raise InvalidRequest(str(exc), 400) from exc
        except DecodersBusy as exc:
            raise GourmetError(str(exc)) from exc
        rows = int(self._config["max_batch_size"]) > 0
        return output_tensors(answers, network, rows=rows), self._version.name

    def close(self) -> None:
        with self._lock:
            if self._open:
                self._open[1].close()

    def _opened(self) -> tuple[ServedNetwork, GenerationRoom]:
        with self._lock:
            if not self._open:
                self._open = opened(_serving(self._config), self._version, self._config)
            return self._open


def _serving(config: Mapping[str, Any]) -> GenerationServing:
    system = parameter(config, SYSTEM_PARAMETER)
    return registry.piece(system, "serving", "SERVING", GenerationServing)  # type: ignore[type-abstract]
