"""The manifests of deploy/kubernetes as kubectl renders them, and what is wrong with them.

A fault is a sentence. What a manifest names is looked for where it has to be: in the Dockerfiles, the compose
files, the settings and the other manifests.
"""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml
from support.dockerfile import instructions

from app.core.settings import VARIABLES
from gourmet.client.address import ADMIN_ENV
from gourmet.doctor.manifests import Manifest, is_a_server, of_kind, pods
from gourmet.doctor.manifests import faults as manifest_faults
from gourmet.systems import registry

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
SERVICES = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())["services"]
VERSION = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]  # type: ignore[index]
REDIS = "valkey/valkey:8.1.9-alpine"
# By image: the Dockerfile, if it is ours, and the service of compose that it is in, if any.
IMAGES: dict[str, tuple[Path | None, str]] = {
    f"gourmetgram-triton:{VERSION}": (ROOT / "Dockerfile.triton", "triton"),
    f"gourmetgram-triton-cpu:{VERSION}": (ROOT / "Dockerfile.triton-cpu", "triton"),
    f"gourmetgram-flask:{VERSION}": (ROOT / "Dockerfile.flask", "flask"),
    SERVICES["proxy"]["image"]: (None, "proxy"),
    REDIS: (None, "redis"),
}
MODELS = {registry.load(name).model_variable for name in registry.names()}
KNOWN = {
    "triton": MODELS | {ADMIN_ENV, "GOURMET_LOAD_ALL"},
    # Kubernetes makes RATE_LIMIT_STORAGE of the password; obstore reads AWS' variables.
    "flask": MODELS
    | set(VARIABLES.values())
    | {"GUNICORN_CMD_ARGS", "REDIS_PASSWORD", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"},
    "proxy": set[str](),
    "redis": {"REDIS_PASSWORD", "REDISCLI_AUTH"},
}
SIZES = {"Mi": 1 << 20, "Gi": 1 << 30, "m": 1 << 20, "g": 1 << 30}


@cache
def _rendered(folder: str) -> list[Manifest]:
    if not shutil.which("kubectl"):
        pytest.skip("no kubectl here, which renders the manifests: Kubernetes' documents say where to get it")
    ran = subprocess.run(
        ["kubectl", "kustomize", FOLDER / folder], capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    return list(yaml.safe_load_all(ran.stdout))


def rendered(folder: str) -> list[Manifest]:
    """All manifests of an overlay, to keep or to spoil."""
    return copy.deepcopy(_rendered(folder))


def overlay(name: str) -> list[Manifest]:
    return rendered(f"overlays/{name}")


def overlay_with(name: str, component: str, folder: Path) -> list[Manifest]:
    """An overlay with one more component at the end of its list, as docs/kubernetes.md says."""
    there = folder / "deploy" / "kubernetes"
    shutil.copytree(FOLDER, there)
    shutil.copytree(ROOT / "proxy", folder / "proxy")
    changed = there / "overlays" / name / "kustomization.yaml"
    text = yaml.safe_load(changed.read_text())
    text["components"].append(f"../../components/{component}")
    changed.write_text(yaml.safe_dump(text))
    return rendered(str(changed.parent))


def one(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    (found,) = (each for each in of_kind(manifests, kind) if each["metadata"]["name"] == name)
    return found


def pod(manifests: list[Manifest], name: str) -> Manifest:
    return next(spec for each, _, spec in pods(manifests) if each == name)


def server(manifests: list[Manifest], name: str) -> Manifest:
    container: Manifest = pod(manifests, name)["containers"][0]
    return container


def settings(manifests: list[Manifest]) -> dict[str, str]:
    """What the ConfigMap of that name gives to Triton and the web app."""
    named = {each["metadata"]["name"]: each["data"] for each in of_kind(manifests, "ConfigMap")}
    (values,) = (data for name, data in named.items() if name.startswith("settings-"))
    return dict(values)


def size(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([A-Za-z]+)", text).groups()  # type: ignore[union-attr]
    return int(number) * SIZES[unit]


def faults(manifests: list[Manifest]) -> list[str]:
    """Everything that is wrong, a sentence each."""
    found = manifest_faults(manifests)
    for name, _, spec in pods(manifests):
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            is_server = is_a_server(container, spec)
            about = f"{name}/{container['name']}"
            found += [f"{about} {fault}" for fault in _of_image(container, is_server=is_server)]
    return found


def _of_image(container: Manifest, *, is_server: bool) -> Iterator[str]:
    if container["image"] not in IMAGES:
        yield f"has the image {container['image']}, which nobody builds"
        return
    if not is_server:
        return
    dockerfile, service = IMAGES[container["image"]]
    if service in SERVICES:
        limit = re.sub(r"\$\{\w+:-(.*)\}", r"\1", SERVICES[service]["mem_limit"])
        given = container["resources"]["limits"].get("memory")
        if given and size(given) != size(limit):
            yield f"may use another memory than in compose, {limit}"
    if dockerfile:
        exposed = instructions(dockerfile, "EXPOSE")[0].split()
        if [str(port["containerPort"]) for port in container.get("ports", [])] != exposed:
            yield f"has other ports than its image, {exposed}"
        started = json.loads(instructions(dockerfile, "CMD")[0])
        args = ["/models" if each == "/mnt/models" else each for each in container.get("args", started)]
        if args[: len(started)] != started:
            yield "is started otherwise than its image"
    if unknown := {each["name"] for each in container.get("env", [])} - KNOWN[service]:
        yield f"has variables that nobody reads: {sorted(unknown)}"
