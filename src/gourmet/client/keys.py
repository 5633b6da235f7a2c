"""The headers with which Triton lets somebody do what changes it; gourmet.serving.api_keys makes the keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gourmet.client.address import Address

ADMIN_HEADER: Final = "gourmet-admin-key"
MEMORY_HEADER: Final = "gourmet-memory-key"
ADMIN_ENV: Final = "TRITON_ADMIN_KEY"
MEMORY_ENV: Final = "TRITON_MEMORY_KEY"


def memory_key(env: Mapping[str, str], address: str) -> dict[str, str]:
    """The header that opens a Triton's locked shared memory, if the environment has the key for it."""
    key = env.get(MEMORY_ENV)
    return {MEMORY_HEADER: key} if key and Address.of(address).may_have(MEMORY_ENV) else {}
