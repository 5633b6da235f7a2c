"""Write requirements/web.hashes.txt: the wheels that pip installs in the web image, on x86-64 and arm64."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = (
    *("-c", "requirements/constraints.txt", "-r", "requirements/web.txt"),
    *("-r", "requirements/tracing.txt", "-r", "requirements/redis.txt"),
    # redis wants it of Python before 3.11.3, such as Debian's; pip looks at the Python that it runs in.
    "async-timeout",
)
HEAD = """# Packages of the web image with the hashes of their wheels for Python 3.11 on x86-64 and arm64.
# Made from web.txt, tracing.txt and redis.txt: .venv/bin/python -P scripts/containers/hashes.py
"""


def wheels(machine: str) -> dict[str, str]:
    """Return the hash of each package's wheel, by `name==version`."""
    platforms = [f"--platform=manylinux{glibc}_{machine}" for glibc in ("2014", "_2_17", "_2_24", "_2_28")]
    command = [
        "install",
        "-q",
        "--dry-run",
        "--ignore-installed",
        "--only-binary=:all:",
        "--python-version=3.11",
    ]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        where = [*platforms, f"--target={folder}", f"--report={report}"]
        subprocess.run([sys.executable, "-m", "pip", *command, *where, *FILES], cwd=ROOT, check=True)
        installed = json.loads(report.read_text())["install"]
    return {
        f"{package['metadata']['name']}=={package['metadata']['version']}": package["download_info"][
            "archive_info"
        ]["hashes"]["sha256"]
        for package in installed
    }


def main() -> None:
    both = [wheels(machine) for machine in ("x86_64", "aarch64")]
    lines = [
        " \\\n    ".join([pin, *sorted({f"--hash=sha256:{hashes[pin]}" for hashes in both if pin in hashes})])
        for pin in sorted({*both[0], *both[1]}, key=str.lower)
    ]
    (ROOT / "requirements" / "web.hashes.txt").write_text(HEAD + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
