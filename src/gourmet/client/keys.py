"""The headers with which Triton lets somebody do what changes it; gourmet.serving.api_keys makes the keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ADMIN_HEADER: Final = "gourmet-admin-key"
MEMORY_HEADER: Final = "gourmet-memory-key"
ADMIN_ENV: Final = "TRITON_ADMIN_KEY"
MEMORY_ENV: Final = "TRITON_MEMORY_KEY"


def memory_key(env: Mapping[str, str]) -> dict[str, str]:
    """The header that opens a Triton's locked shared memory, if the environment has the key."""
    return {MEMORY_HEADER: env[MEMORY_ENV]} if env.get(MEMORY_ENV) else {}
