"""Look up every pinned package among the known vulnerabilities (`make audit`).

The exit status is 1 if a vulnerability is known, 2 if pip-audit failed, and 3 if the database could not be
reached.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).parents[1]
PINS = "requirements/constraints.txt"
# Beside their own, the pins of these are in no list of constraints (a build of torch says so in its version).
MORE = ("requirements/web.txt", "requirements/models.txt", "requirements/serve.txt", "requirements/train.txt")


def main() -> int:
    command = [sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip", "--progress-spinner", "off"]
    command += ["--format", "json", "-r", "/dev/stdin"]
    try:
        answer = subprocess.run(command, input=pins(), capture_output=True, text=True, timeout=600)
        return tell(json.loads(answer.stdout)["dependencies"])
    except subprocess.TimeoutExpired:
        return tell([])
    except (json.JSONDecodeError, KeyError):
        reason = (answer.stderr.splitlines() or [f"status {answer.returncode}"])[-1]
    if reason.startswith("requests.exceptions.") or "Could not connect" in reason:
        return tell([])
    click.echo(f"audit: pip-audit failed: {reason}")
    return 2


def pins() -> str:
    """Return every pinned package with its version, one per line."""
    lines = [line for name in (PINS, *MORE) for line in (ROOT / name).read_text().splitlines()]
    pinned = {re.sub(r"\[.*?\]", "", line).lower() for line in lines if re.match(r"[\w.-]+(\[.*\])?==", line)}
    return "\n".join(sorted(pinned)) + "\n"


def tell(packages: list[dict[str, Any]]) -> int:
    """Print the known vulnerabilities of the packages and return the exit status."""
    unknown = [package["name"] for package in packages if "skip_reason" in package]
    if len(unknown) == len(packages):
        click.echo("audit: THE DATABASE COULD NOT BE ASKED: no package was looked up")
        return 3
    bad = [package for package in packages if package.get("vulns")]
    for package in bad:
        for vulnerability in package["vulns"]:
            fixed = ", ".join(vulnerability["fix_versions"]) or "none yet"
            click.echo(f"{package['name']} {package['version']}: {vulnerability['id']}, fixed in {fixed}")
    click.echo(
        f"audit: {len(packages) - len(unknown)} packages looked up, {len(bad)} with known vulnerabilities"
    )
    if unknown:
        click.echo(f"audit: not looked up: {', '.join(unknown)}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
