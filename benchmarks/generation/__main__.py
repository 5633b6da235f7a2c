"""`python -P benchmarks/generation`: this folder is a package, which is found from the folder above it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from generation.command import generation  # noqa: E402 - the path comes first
from harness.run import main  # noqa: E402

if __name__ == "__main__":
    main(generation)
