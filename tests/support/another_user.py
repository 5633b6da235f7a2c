"""What another user of this machine may do, tried as one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

import pytest

NOBODY: Final = 65534


def reads(path: Path) -> bytes | None:
    """What the user nobody reads in `path`; None where that is refused."""
    if os.geteuid() != 0:
        pytest.skip("only root can try as another user")
    done = subprocess.run(
        ["cat", path], user=NOBODY, group=NOBODY, extra_groups=(), cwd="/", capture_output=True, check=False
    )
    return None if done.returncode else done.stdout
