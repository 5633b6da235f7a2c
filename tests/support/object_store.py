"""A real S3 server for tests: moto's, started once, on a free port of loopback."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from gourmet.serving.preflight import free_ports
from gourmet.serving.waiting import http_ok, wait_until

# By somebody with an account, which is all that this server looks for.
SIGNED = (
    "AWS4-HMAC-SHA256 Credential=somebody/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
)
MOTO = Path(sys.executable).with_name("moto_server")


@dataclass(frozen=True)
class Bucket:
    name: str
    env: Mapping[str, str]

    def put(self, key: str, data: bytes) -> str:
        """Its name."""
        url = f"{self.env['AWS_ENDPOINT_URL']}/{self.name}/{quote(key)}".rstrip("/")
        headers = {"Authorization": SIGNED, "Content-Type": "application/octet-stream"}
        request = urllib.request.Request(url, data, headers, method="PUT")
        urllib.request.urlopen(request, timeout=10).close()
        return f"s3://{self.name}/{key}"


@contextmanager
def bucket(name: str = "photos") -> Iterator[Bucket]:
    """An empty one, on a server of its own."""
    (port,) = free_ports(1)
    env = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": "secret",
    }
    argv = [MOTO, "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            found = Bucket(name, env)
            wait_until(lambda: http_ok(f"{env['AWS_ENDPOINT_URL']}/moto-api/"), 60, "moto did not start")
            found.put("", b"")
            yield found
        finally:
            server.terminate()
