"""Start Triton in NVIDIA's image, as `gourmet up` starts the wheel's Triton.

    python3 -m gourmet.stack.nvidia_image ARGUMENT…        # the arguments are tritonserver's

Calls that change the server need a key. Models for study are not loaded, unless GOURMET_LOAD_ALL is 1. This
process stays the first one of the container: only a parent can remove the key from a command line.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from gourmet.served.instances import CONFIG_NAME_ENV
from gourmet.served.signals import set_on_stop
from gourmet.stack import run_file
from gourmet.stack.api_keys import LockedTriton, make_key

_REPOSITORY: Final = "--model-repository="
# See gourmet.stack.preflight.held_back. A regular expression, since the image has no parser of configs.
_FOR_STUDY: Final = re.compile(r'key:\s*"load"\s+value:?\s*{\s*string_value:\s*"asked"')
_DRAIN_TIMEOUT_S: Final = 12  # a container has 15 s to stop


def models(repositories: Sequence[Path], *, load_all: bool) -> Iterator[str]:
    """Yield the models to load at the start."""
    for config in sorted(config for folder in repositories for config in folder.glob("*/config.pbtxt")):
        if load_all or not _FOR_STUDY.search(config.read_text()):
            yield config.parent.name


def command(arguments: Sequence[str]) -> list[str]:
    """Return Triton's command line, without the key."""
    folders = [Path(word.removeprefix(_REPOSITORY)) for word in arguments if word.startswith(_REPOSITORY)]
    names = models(folders, load_all=os.environ.get("GOURMET_LOAD_ALL", "") == "1")
    profile = os.environ.get(CONFIG_NAME_ENV)
    return [
        "tritonserver",
        *arguments,
        *(f"--load-model={name}" for name in names),
        *([f"--model-config-name={profile}"] if profile else []),
    ]


def main(arguments: Sequence[str]) -> int:
    """Run Triton until it ends or a signal comes, and return its exit status."""
    key, stop = make_key(os.environ), threading.Event()

    def show(line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    with run_file.run_file_for((8000, 8001), {"admin": key}), set_on_stop(stop):
        triton = LockedTriton(command(arguments), key, env=os.environ, cwd=Path.cwd(), on_line=show)
        try:
            while (status := triton.exit_status()) is None and not stop.wait(0.2):
                pass
        finally:
            triton.stop(_DRAIN_TIMEOUT_S)
    return 0 if status is None else abs(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
