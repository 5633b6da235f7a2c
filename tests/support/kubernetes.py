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
from typing import Any

import pytest
import yaml
from support.dockerfile import instructions

from app.core.settings import VARIABLES
from gourmet.client.keys import ADMIN_ENV, MEMORY_ENV
from gourmet.systems import registry

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
SERVICES = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())["services"]
VERSION = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]  # type: ignore[index]
# By image: the Dockerfile, if it is ours, and the service of compose that it is in.
IMAGES = {
    f"gourmetgram-triton:{VERSION}": (ROOT / "Dockerfile.triton", "triton"),
    f"gourmetgram-triton-cpu:{VERSION}": (ROOT / "Dockerfile.triton-cpu", "triton"),
    f"gourmetgram-flask:{VERSION}": (ROOT / "Dockerfile.flask", "flask"),
    SERVICES["proxy"]["image"]: (None, "proxy"),
}
MODELS = {registry.load(name).model_variable for name in registry.names()}
KNOWN = {
    "triton": MODELS | {ADMIN_ENV, MEMORY_ENV, "GOURMET_LOAD_ALL"},
    "flask": MODELS | set(VARIABLES.values()) | {"GUNICORN_CMD_ARGS"},
    "proxy": set[str](),
}
SIZES = {"Mi": 1 << 20, "Gi": 1 << 30, "m": 1 << 20, "g": 1 << 30}
Manifest = dict[str, Any]


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


def of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    return [each for each in manifests if each["kind"] == kind]


def pods(manifests: list[Manifest]) -> Iterator[tuple[str, dict[str, str], Manifest]]:
    """Name, labels and spec of each pod that the manifests ask for; KServe's is in two of them."""
    for each in manifests:
        spec = each.get("spec", {})
        if each["kind"] == "Deployment":
            yield each["metadata"]["name"], spec["template"]["metadata"]["labels"], spec["template"]["spec"]
        elif each["kind"] == "Pod":
            yield each["metadata"]["name"], each["metadata"].get("labels", {}), spec
        elif each["kind"] == "ServingRuntime":
            (service,) = of_kind(manifests, "InferenceService")
            yield each["metadata"]["name"], spec["labels"], service["spec"]["predictor"] | spec


def overlay(name: str) -> list[Manifest]:
    return rendered(f"overlays/{name}")


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
    found = []
    for name, labels, pod in pods(manifests):
        found += [f"{name} {fault}" for fault in _of_pod(pod)]
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            is_server = container in pod["containers"] and "command" not in container
            about = f"{name}/{container['name']}"
            found += [f"{about} {fault}" for fault in _of_container(container, is_server=is_server)]
            found += [f"{about} {fault}" for fault in _of_names(container, pod, manifests)]
        found += [f"{name} {fault}" for fault in _of_selectors(labels, manifests)]
    return found + list(_of_network(manifests))


def _of_pod(pod: Manifest) -> Iterator[str]:
    security = pod.get("securityContext", {})
    if not security.get("runAsNonRoot") or not security.get("runAsUser"):
        yield "may run as root"
    if security.get("seccompProfile") != {"type": "RuntimeDefault"}:
        yield "has all system calls"
    if pod.get("automountServiceAccountToken", True):
        yield "has a token of the cluster"
    if pod.get("enableServiceLinks", True):
        yield "has variables of the services' names"
    if {"hostNetwork", "hostPID", "hostIPC"} & pod.keys():
        yield "is in the node's namespaces"
    for volume in pod.get("volumes", []):
        if not volume.keys() & {"emptyDir", "configMap", "persistentVolumeClaim"}:
            yield f"mounts {volume}"
        if "emptyDir" in volume and "sizeLimit" not in (volume["emptyDir"] or {}):
            yield f"has no end of {volume['name']}"


def _of_container(container: Manifest, *, is_server: bool) -> Iterator[str]:
    if container["image"] not in IMAGES:
        yield f"has the image {container['image']}, which nobody builds"
        return
    dockerfile, service = IMAGES[container["image"]]
    security = container.get("securityContext", {})
    if security.get("allowPrivilegeEscalation", True) or security.get("privileged"):
        yield "may gain privileges"
    if security.get("capabilities") != {"drop": ["ALL"]}:
        yield "has capabilities"
    # NVIDIA's Triton changes its own files, as docs/containers.md says.
    if not security.get("readOnlyRootFilesystem") and not (
        is_server and dockerfile == ROOT / "Dockerfile.triton"
    ):
        yield "can write to its image"
    for bound in ("requests", "limits"):
        if not {"cpu", "memory"} <= container.get("resources", {}).get(bound, {}).keys():
            yield f"has no {bound}"
            return
    if not is_server:
        return
    limit = re.sub(r"\$\{\w+:-(.*)\}", r"\1", SERVICES[service]["mem_limit"])
    if size(container["resources"]["limits"]["memory"]) != size(limit):
        yield f"may use another memory than in compose, {limit}"
    if not {"readinessProbe", "livenessProbe"} <= container.keys():
        yield "has no probes"
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


def _of_names(container: Manifest, pod: Manifest, manifests: list[Manifest]) -> Iterator[str]:
    """Ports, volumes, ConfigMaps, claims and files by the names under which they are somewhere else."""
    volumes = {each["name"]: each for each in pod.get("volumes", [])}
    names = {
        each["kind"]: {one["metadata"]["name"] for one in of_kind(manifests, each["kind"])}
        for each in manifests
    }
    for mount in container.get("volumeMounts", []):
        if mount["name"] not in volumes:
            yield f"mounts {mount['name']}, which is not a volume"
            continue
        volume = volumes[mount["name"]]
        config = volume.get("configMap", {"optional": True})
        if not config.get("optional") and config["name"] not in names.get("ConfigMap", ()):
            yield f"mounts {config['name']}, which is not there"
        claim = volume.get("persistentVolumeClaim", {}).get("claimName", "models")
        if "PersistentVolumeClaim" in names and claim not in names["PersistentVolumeClaim"]:
            yield f"claims {claim}, which is not there"
    for source in container.get("envFrom", []):
        if source["configMapRef"]["name"] not in names["ConfigMap"]:
            yield f"has variables of {source['configMapRef']['name']}, which is not there"
    for variable in container.get("env", []):
        secret = variable.get("valueFrom", {}).get("secretKeyRef")
        if secret and (secret["key"] != variable["name"] or not secret["optional"]):
            yield f"wants {variable['name']} under another name, or does without a secret"
    ports = {port["name"] for port in container.get("ports", [])}
    ports |= {port["containerPort"] for port in container.get("ports", [])}
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = container.get(kind, {})
        asked = (probe.get("httpGet") or probe.get("tcpSocket") or {}).get("port")
        if asked and asked not in ports:
            yield f"is asked at {asked}, where it does not listen"


def _of_selectors(labels: dict[str, str], manifests: list[Manifest]) -> Iterator[str]:
    """A server's pods are those of its Service, budget and policy, which have its name."""
    name = labels.get("app.kubernetes.io/name", "")
    for kind in ("Service", "PodDisruptionBudget", "NetworkPolicy") if name else ():
        by_name = {each["metadata"]["name"]: each["spec"] for each in of_kind(manifests, kind)}
        spec = by_name.get(name, {})
        selector = spec.get("selector") or spec.get("podSelector") or {}
        if not selector or not selector.get("matchLabels", selector).items() <= labels.items():
            yield f"has no {kind}"


def _of_network(manifests: list[Manifest]) -> Iterator[str]:
    policies = {each["metadata"]["name"]: each["spec"] for each in of_kind(manifests, "NetworkPolicy")}
    if policies and policies.get("nothing-else") != {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}:
        yield "what no policy names is open"
    for name, spec in policies.items():
        let_in = [
            {
                each["podSelector"].get("matchLabels", {}).get("app.kubernetes.io/name", "anybody")
                for each in rule["from"]
                if "podSelector" in each
            }
            for rule in spec.get("ingress", [])
            if "from" in rule
        ]
        wanted = {"triton": {"flask"}, "flask": {"proxy"}}.get(name)
        if wanted and (set().union(*let_in) != wanted or len(let_in) != len(spec["ingress"])):
            yield f"{name} lets in others than {wanted}"
    servers = {labels.get("app.kubernetes.io/name"): pod for _, labels, pod in pods(manifests)}
    for name, spec in policies.items():
        open_ports = {port["port"] for rule in spec.get("ingress", []) for port in rule["ports"]}
        listens = {
            port["containerPort"]
            for each in servers.get(name, {}).get("containers", [])
            for port in each["ports"]
        }
        if open_ports != listens:
            yield f"{name} listens at {sorted(listens)} and its policy opens {sorted(open_ports)}"
