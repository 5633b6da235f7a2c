"""A process that waits until a notebook's kernel has ended, and has models serve again what their files say.

python -m gourmet.lab.restoring URL REPOSITORY MODEL…        # until its standard input ends, as it does
                                                             # with a kernel that is killed as well
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from gourmet.client.model_config import as_json
from gourmet.errors import GourmetError
from gourmet.repository import read_config
from gourmet.serving.connect import LOADS_WITHIN_S, connect


def restore(url: str, repository: Path, models: list[str]) -> None:
    for model in models:
        with contextlib.suppress(GourmetError), connect(url, LOADS_WITHIN_S) as triton:
            triton.load(model, as_json(read_config(repository / model)))


if __name__ == "__main__":
    sys.stdin.read()
    restore(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
