"""The instructions of a Dockerfile."""

from __future__ import annotations

import re
from pathlib import Path


def instructions(path: Path, name: str) -> list[str]:
    """The arguments of every instruction `name`, continued lines joined and comments left out."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return re.findall(rf"^{name}\s+(.*)$", joined, re.MULTILINE)
