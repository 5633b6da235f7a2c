"""A child that makes shared memory as Boost does, which sets its mode again: others cannot read it."""

from __future__ import annotations

import os
import sys
import uuid
from pathlib import Path

import pytest
from support.another_user import reads

from gourmet.serving.processes import Child
from gourmet.serving.waiting import wait_until

LIKE_BOOST = """
import os, sys
file = os.open(sys.argv[1], os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
os.write(file, b"a photo")
os.fchmod(file, 0o600 & os.fstat(file).st_mode)
try:
    os.fchmod(file, 0o644)
except PermissionError:
    print("refused", flush=True)
"""


@pytest.mark.parametrize("private", [True, False])
def test_others_cannot_read_what_a_private_child_makes(tmp_path: Path, private: bool) -> None:
    region, lines = Path("/dev/shm") / f"test-{uuid.uuid4().hex}", []
    command = [sys.executable, "-P", "-c", LIKE_BOOST, str(region)]
    child = Child(command, env=os.environ, cwd=tmp_path, on_line=lines.append, private=private)
    try:
        wait_until(lambda: child.exit_status() is not None, 20, "the child did not end")
        child.stop(0)
        assert lines == (["refused"] if private else [])
        assert region.stat().st_mode & 0o777 == (0o600 if private else 0o644)
        assert reads(region) == (None if private else b"a photo")
    finally:
        region.unlink(missing_ok=True)
