"""What is wrong with manifests of a cluster: pods that may do too much, or that name what is not there.

They are those of deploy/kubernetes, rendered, or with changes of one's own. A fault is a sentence.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from gourmet.doctor import policies
from gourmet.doctor.findings import Finding, fail, ok
from gourmet.errors import GourmetError, UsageError
from gourmet.runtime.bounded_reading import in_short, read_bytes

Manifest = dict[str, Any]

_MOST_BYTES: Final = 4 << 20
# Far more than a cluster of this project has: what follows goes through all of them for each.
_MOST_MANIFESTS: Final = 300
_MOST_VALUES: Final = 20_000
_LONGEST_PLAIN: Final = 4_096  # which may be a number, in quotes it is not


def examined(path: Path) -> Iterator[Finding]:
    """Of a file of manifests; `-` for those of stdin."""
    manifests = _read(path)
    try:
        found = faults(manifests)
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as exc:
        raise GourmetError(f"{path} has no whole manifests: {in_short(exc)}") from exc
    yield from (fail(fault) for fault in found)
    names = sorted({str(name) for name, _, _ in pods(manifests)})
    if not names:
        raise UsageError(f"{path} has no manifests of pods: give what `kubectl kustomize` prints")
    if not found:
        yield ok(f"{len(manifests)} manifests, pods of {', '.join(names)}")


def _read(path: Path) -> list[Manifest]:
    import yaml

    try:
        text = _stdin() if str(path) == "-" else read_bytes(path, _MOST_BYTES)
        _check_size(text)
        found = [each for each in yaml.safe_load_all(text) if each is not None]
    except (OSError, RecursionError, ValueError, yaml.YAMLError) as exc:
        raise GourmetError(f"{path} cannot be read as manifests: {in_short(exc)}") from exc
    if not all(isinstance(each, dict) and isinstance(each.get("kind"), str) for each in found):
        raise GourmetError(f"{path} has no whole manifests: each has a kind and fields")
    return found


def _stdin() -> bytes:
    if len(text := sys.stdin.buffer.read(_MOST_BYTES + 1)) > _MOST_BYTES:
        raise ValueError(f"it is larger than {_MOST_BYTES >> 20} MB")
    return text


def _check_size(text: bytes) -> None:
    """Raise ValueError for more than manifests have, before any of it is made.

    Aliases, of which `kubectl kustomize` prints none, would make billions of values of a few bytes.
    """
    import yaml

    documents = values = 0
    for event in yaml.parse(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        documents += isinstance(event, yaml.DocumentStartEvent)
        values += isinstance(event, yaml.NodeEvent)
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("it has aliases (*name): give what `kubectl kustomize` prints")
        if isinstance(event, yaml.ScalarEvent) and event.implicit[0] and len(event.value) > _LONGEST_PLAIN:
            raise ValueError(f"a value without quotes is longer than {_LONGEST_PLAIN:,} characters")
        if documents > _MOST_MANIFESTS or values > _MOST_VALUES:
            raise ValueError(f"at most {_MOST_MANIFESTS} manifests of {_MOST_VALUES:,} values are looked at")


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


def faults(manifests: list[Manifest]) -> list[str]:
    """Everything that is wrong, a sentence each."""
    found, names = [], dict[str, set[str]]()
    for each in manifests:
        names.setdefault(each["kind"], set()).add(each.get("metadata", {}).get("name"))
    for name, labels, pod in pods(manifests):
        found += [f"{name} {fault}" for fault in _of_pod(pod)]
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            about = f"{name}/{container['name']}"
            is_server = is_a_server(container, pod)
            found += [f"{about} {fault}" for fault in _of_container(container, is_server=is_server)]
            found += [f"{about} {fault}" for fault in _of_names(container, pod, names)]
        found += [f"{name} {fault}" for fault in _of_selectors(labels, manifests)]
    by_name = {each["metadata"]["name"]: each["spec"] for each in of_kind(manifests, "NetworkPolicy")}
    return found + list(policies.faults(by_name, [(labels, pod) for _, labels, pod in pods(manifests)]))


def is_a_server(container: Manifest, pod: Manifest) -> bool:
    """And not one that does something and is over."""
    return container in pod["containers"] and "command" not in container


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
    security, resources = container.get("securityContext", {}), container.get("resources", {})
    if security.get("allowPrivilegeEscalation", True) or security.get("privileged"):
        yield "may gain privileges"
    if security.get("capabilities") != {"drop": ["ALL"]}:
        yield "has capabilities"
    # NVIDIA's Triton changes its own files, as docs/containers.md says.
    is_nvidias = is_server and "nvidia.com/gpu" in resources.get("limits", {})
    if not security.get("readOnlyRootFilesystem") and not is_nvidias:
        yield "can write to its image"
    for bound in ("requests", "limits"):
        if not {"cpu", "memory"} <= resources.get(bound, {}).keys():
            yield f"has no {bound}"
            return
    if is_server and not {"readinessProbe", "livenessProbe"} <= container.keys():
        yield "has no probes"


def _of_names(container: Manifest, pod: Manifest, names: Mapping[str, set[str]]) -> Iterator[str]:
    """Ports, volumes, ConfigMaps, claims and files by the names under which they are somewhere else."""
    volumes = {each["name"]: each for each in pod.get("volumes", [])}
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
        # A Redis without a password would let anyone in who reaches it; others start without their secrets.
        if secret and (secret["key"] != variable["name"] or secret["optional"] == _is_redis(container)):
            yield f"wants {variable['name']} under another name, or does without a secret"
    ports = {port["name"] for port in container.get("ports", [])}
    ports |= {port["containerPort"] for port in container.get("ports", [])}
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = container.get(kind, {})
        asked = (probe.get("httpGet") or probe.get("tcpSocket") or {}).get("port")
        if asked and asked not in ports:
            yield f"is asked at {asked}, where it does not listen"


def _is_redis(container: Manifest) -> bool:
    return any(port.get("name") == "redis" for port in container.get("ports", []))


def _of_selectors(labels: dict[str, str], manifests: list[Manifest]) -> Iterator[str]:
    """A server's pods are those of its Service, budget and policy, which have its name."""
    name = labels.get("app.kubernetes.io/name", "")
    for kind in ("Service", "PodDisruptionBudget", "NetworkPolicy") if name else ():
        by_name = {each["metadata"]["name"]: each["spec"] for each in of_kind(manifests, kind)}
        spec = by_name.get(name, {})
        selector = spec.get("selector") or spec.get("podSelector") or {}
        if not selector or not selector.get("matchLabels", selector).items() <= labels.items():
            yield f"has no {kind}"
