"""Which protocol a Triton's address speaks: programs made after NVIDIA's examples take either port."""

from __future__ import annotations

from typing import Final

from gourmet.client.deadline import Deadline
from gourmet.client.errors import TritonUnreachable
from gourmet.client.triton import Triton
from gourmet.serving import api_keys

_ANSWERS_WITHIN_S: Final = 2.0
LOADS_WITHIN_S: Final = 180.0


def triton_at(url: str) -> Triton:
    """The Triton at `url` (host:port, HTTP or gRPC); raise TritonUnreachable where neither answers."""
    place = url.removeprefix("http://").removeprefix("grpc://").rstrip("/")
    for protocol in ("http", "grpc"):
        keys = api_keys.headers_for(place, grpc=protocol == "grpc")
        triton = Triton.at(f"{protocol}://{place}", LOADS_WITHIN_S, keys=keys)
        if triton.is_live(Deadline(_ANSWERS_WITHIN_S)):
            return triton
        triton.close()
    raise TritonUnreachable(place, f"no answer within {_ANSWERS_WITHIN_S:g} s", " over HTTP or gRPC")
