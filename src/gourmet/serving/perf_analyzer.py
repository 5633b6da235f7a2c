"""NVIDIA's perf_analyzer out of the tritonclient wheel: the program, its environment, the keys it needs."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path
from typing import Final

from gourmet.errors import GourmetError
from gourmet.serving import api_keys
from gourmet.serving.wheel import find_wheel

# The names under which perf_analyzer looks for two libraries that nvidia-pytriton carries under longer ones.
_LIBRARIES: Final = {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12*"}


def binary() -> Path:
    binary = Path(sysconfig.get_path("scripts"), "perf_analyzer")
    if not binary.is_file():
        raise GourmetError(
            f"no perf_analyzer found at {binary}: the Linux wheel of tritonclient brings it; "
            "run `make setup`, or `pip install -r requirements/triton.txt`"
        )
    return binary


def environment(folder: Path) -> dict[str, str]:
    """Ours, with links in `folder` by which perf_analyzer finds its libraries in the wheel."""
    for name, pattern in _LIBRARIES.items():
        for found in sorted(find_wheel().libraries.glob(pattern))[-1:]:
            (folder / name).symlink_to(found)
    return {**os.environ, "LD_LIBRARY_PATH": str(folder)}


def keys(url: str, protocol: str) -> list[str]:
    headers = api_keys.headers_for(url, grpc=protocol == "grpc")
    return [word for name, key in headers.items() for word in ("-H", f"{name}:{key}")]
