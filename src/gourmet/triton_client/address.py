"""Address and protocol of a Triton, and the secrets of the environment that are sent to it."""

from __future__ import annotations

import functools
import logging
import os
import re
import ssl
from pathlib import Path
from typing import Final, NamedTuple

from gourmet.errors import UsageError

SERVER_ENV: Final = "TRITON_SERVER_URL"
GRPC_ENV: Final = "TRITON_GRPC_URL"
TOKEN_ENV: Final = "TRITON_TOKEN"  # noqa: S105
# With this header Triton lets somebody change it; gourmet.stack.api_keys makes the key.
ADMIN_HEADER: Final = "gourmet-admin-key"
ADMIN_ENV: Final = "TRITON_ADMIN_KEY"
CA_ENV: Final = "TRITON_CA_FILE"
_TLS_ENV: Final = (CA_ENV, "TRITON_CLIENT_CERT", "TRITON_CLIENT_KEY")
LOOPBACK: Final = ("localhost", "127.0.0.1", "::1", "[::1]")
FORMS: Final = "host:port, such as localhost:8000, or with http://, https://, grpc:// or grpcs:// before it"
_FORM: Final = re.compile(r"(?:(https?|grpcs?)://)?([\w.-]+|\[[0-9a-fA-F:.]+\])(?::([0-9]{1,5}))?/?")


class Address(NamedTuple):
    """The address of one server, without a path; an IPv6 host has brackets."""

    scheme: str
    host: str
    port: int

    @classmethod
    def of(cls, text: str) -> Address:
        """Parse an address; the port may be missing with TLS only. Raise UsageError."""
        match = _FORM.fullmatch(text.strip())
        scheme, host, port = match.groups() if match else ("", "", "")
        number = int(port or ("443" if scheme in ("https", "grpcs") else "0"))
        if not 0 < number < 65536:
            shown = text.rpartition("@")[2]  # a password may stand before it
            proxy = "; of several, name the proxy in front of them (deploy/haproxy)" if "," in text else ""
            raise UsageError(f"{shown!r} is not an address of a Triton: write it as {FORMS}{proxy}")
        return cls(scheme or "http", host, number)

    def __str__(self) -> str:
        return self.netloc if self.scheme == "http" else f"{self.scheme}://{self.netloc}"

    @property
    def netloc(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def is_grpc(self) -> bool:
        return self.scheme.startswith("grpc")

    @property
    def is_tls(self) -> bool:
        return self.scheme.endswith("s")

    @property
    def grpc(self) -> Address:
        """Return the usual gRPC address of this server, with the same security."""
        return self if self.is_grpc else Address("grpcs" if self.is_tls else "http", self.host, 8001)

    @property
    def is_named(self) -> bool:
        """Return True if the environment names this host, or no host."""
        named = list(filter(None, map(os.environ.get, (SERVER_ENV, GRPC_ENV))))
        hosts = {Address.of(address).host for address in named or [str(self)]}
        return self.host in hosts or bool(self.host in LOOPBACK and hosts & set(LOOPBACK))

    def may_have(self, secret: str) -> bool:
        """Return True if a variable's secret is sent there; warn once if it can be read on the way."""
        if not self.is_named:
            _say(f"{secret} is for the hosts of {SERVER_ENV}, and is not sent to {self}")
            return False
        if not self.is_tls and self.host not in LOOPBACK:
            _say(f"{secret} goes to {self} without TLS, where it can be read on the way: use https or grpcs")
        return True

    def authorization(self) -> dict[str, str]:
        """Return the header with the environment's token, if it may be sent to this address."""
        token = os.environ.get(TOKEN_ENV, "").strip()
        if not re.fullmatch(r"[!-~]*", token):
            raise UsageError(f"{TOKEN_ENV} has characters that a header cannot hold: give printable ASCII")
        return {"authorization": f"Bearer {token}"} if token and self.may_have(TOKEN_ENV) else {}

    def tls(self) -> ssl.SSLContext | None:
        """Read the certificates of the environment; a server's certificate and name are always checked."""
        if not self.is_tls:
            return None
        ca, certificate, key = tls_files()
        try:
            context = ssl.create_default_context(cafile=ca)
            if certificate:
                # Without this OpenSSL would ask the terminal for the password of an encrypted key.
                context.load_cert_chain(certificate, key, password="")
        except OSError as exc:  # ssl.SSLError is one
            raise UsageError(
                f"{', '.join(_TLS_ENV)} are {ca}, {certificate}, {key} and cannot be used ({exc}): name PEM "
                "files, and a key that belongs to the certificate and has no password"
            ) from exc
        return context


def tls_files() -> list[Path | None]:
    """Return the CA, the client's certificate and its key, which may be in one file."""
    return [Path(path) if (path := os.environ.get(name)) else None for name in _TLS_ENV]


@functools.cache
def _say(words: str) -> None:
    logging.getLogger(__name__).warning(words)
