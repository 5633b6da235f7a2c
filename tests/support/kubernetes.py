"""The manifests of deploy/kubernetes as kubectl renders them."""

from __future__ import annotations

import copy
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from support.needs import need

Manifest = dict[str, Any]

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
SERVICES = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())["services"]
VERSION = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]  # type: ignore[index]
# By image: the Dockerfile, if it is ours, and the service of compose that it is in.
IMAGES: dict[str, tuple[Path | None, str]] = {
    f"gourmetgram-triton:{VERSION}": (ROOT / "Dockerfile.triton", "triton"),
    f"gourmetgram-triton-cpu:{VERSION}": (ROOT / "Dockerfile.triton-cpu", "triton"),
    f"gourmetgram-flask:{VERSION}": (ROOT / "Dockerfile.flask", "flask"),
    "gourmetgram-models:1": (FOLDER / "Dockerfile.models", ""),
    SERVICES["proxy"]["image"]: (None, "proxy"),
}


@cache
def _rendered(folder: str) -> list[Manifest]:
    return manifests_of(FOLDER / folder)


def manifests_of(folder: Path) -> list[Manifest]:
    ran = subprocess.run([need("kubectl"), "kustomize", folder], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return list(yaml.safe_load_all(ran.stdout))


def rendered(folder: str) -> list[Manifest]:
    """All manifests of a folder, which a test may change."""
    return copy.deepcopy(_rendered(folder))


def overlay(name: str) -> list[Manifest]:
    return rendered(f"overlays/{name}")


def of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def one(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    (only,) = (manifest for manifest in of_kind(manifests, kind) if manifest["metadata"]["name"] == name)
    return only


def pods(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """Name and spec of each pod."""
    for manifest in manifests:
        if manifest["kind"] == "Deployment":
            yield manifest["metadata"]["name"], manifest["spec"]["template"]["spec"]
        elif manifest["kind"] == "Pod":
            yield manifest["metadata"]["name"], manifest["spec"]


def pod(manifests: list[Manifest], name: str) -> Manifest:
    return dict(pods(manifests))[name]


def server(manifests: list[Manifest], name: str) -> Manifest:
    container: Manifest = pod(manifests, name)["containers"][0]
    return container


def settings(manifests: list[Manifest]) -> dict[str, str]:
    """Return the variables that the ConfigMap of this name gives to Triton and the web app."""
    named = {manifest["metadata"]["name"]: manifest["data"] for manifest in of_kind(manifests, "ConfigMap")}
    (values,) = (data for name, data in named.items() if name.startswith("settings-"))
    return dict(values)
