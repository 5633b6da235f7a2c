"""The client of a running Triton with the keys to it, as far as they are known here."""

from __future__ import annotations

from typing import Final

from gourmet.client import sample
from gourmet.client.errors import NotTriton
from gourmet.client.transport import KeyedTransport
from gourmet.client.triton import Triton, transports
from gourmet.serving import api_keys
from gourmet.systems import registry

_TIMEOUT_S: Final = 30.0
LOADS_WITHIN_S: Final = 180.0


def connect(url: str, timeout_s: float = _TIMEOUT_S) -> Triton:
    """The Triton at `url` (host:port), or at several with commas between; nothing is asked yet."""
    return Triton(
        [KeyedTransport(each, api_keys.headers_for(each.address)) for each in transports(url)], timeout_s
    )


def connect_either(url: str) -> Triton:
    """The same at an address of HTTP or gRPC, as NVIDIA's examples take it; raise unless it is live."""
    triton = connect(url, LOADS_WITHIN_S)
    try:
        triton.check_live()
    except NotTriton:
        triton = connect(f"grpc://{url.rpartition('://')[2]}", LOADS_WITHIN_S)
        triton.check_live()
    return triton


def ask_sample(url: str, system: str, model: str) -> str:
    """What `model` says to its system's sample, in a sentence; raise unless it really answers."""
    with connect(url) as triton:
        return sample.ask_sample(triton, registry.load(system), model)
