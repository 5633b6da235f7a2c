"""A Triton of a scenario's own, where the running one does not serve all its models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gourmet.measure.task import Addresses
from gourmet.serving.preflight import free_ports
from gourmet.serving.triton_server import TritonOptions, TritonServer


@contextmanager
def own_server(repositories: Sequence[Path], models: Sequence[str] = ()) -> Iterator[Addresses]:
    """Serving these models, or all, on free ports."""
    http, grpc, metrics = free_ports(3)
    options = TritonOptions(tuple(repositories), http_port=http, grpc_port=grpc, metrics_port=metrics)
    log: list[str] = []
    server = TritonServer(options, log.append)
    try:
        server.start(models)
        server.wait_until_live()
        yield Addresses(options.http_url, options.grpc_url)
    finally:
        server.close()
