"""A process that counts the layers of an ONNX file from outside.

python -m gourmet.roofline.counting_process LIMITS        # see gourmet.runtime.sandbox
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final

from gourmet.errors import GourmetError
from gourmet.roofline.counting import Counted, LayerCost, count
from gourmet.runtime import sandbox
from gourmet.runtime.sandbox import Ended, Facts, Limits, Refused, Sandbox

COUNTING_S: Final = 60.0
_COUNTING_BYTES: Final = 2 << 30
_SAYS_WHICH_FILE: Final = "says which file"


def counted(path: Path, dims: Mapping[str, int]) -> Counted:
    """The same as `count`, by another process within limits."""
    size = path.stat().st_size if path.exists() else 0
    limits = Limits(COUNTING_S, COUNTING_S, _COUNTING_BYTES + 4 * size)
    try:
        with Sandbox("gourmet.roofline.counting_process", limits) as process:
            _, data = process.ask({"path": str(path), "dims": dims})
    except (Refused, Ended) as exc:
        says_all = isinstance(exc, Refused) and exc.code == _SAYS_WHICH_FILE
        raise GourmetError(str(exc) if says_all else f"{path} cannot be read as ONNX: {exc}") from exc
    found = json.loads(data)
    return Counted(
        tuple(LayerCost(**each) for each in found["layers"]), tuple(found["unknown"]), found["batches"]
    )


def _answer(facts: Facts, _data: bytes) -> tuple[Facts, bytes]:
    try:
        return {}, json.dumps(asdict(count(Path(facts["path"]), facts["dims"]))).encode()
    except GourmetError as exc:
        raise Refused(_SAYS_WHICH_FILE, str(exc)) from exc


if __name__ == "__main__":
    sandbox.serve(sandbox.in_a_sentence(_answer))
