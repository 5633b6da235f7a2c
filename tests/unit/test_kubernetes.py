"""The manifests of deploy/kubernetes: valid, restrained, and naming nothing that is not there.

They were never applied to a cluster. Spoiled copies of them show that each check can fail.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner
from kubernetes_validate.utils import all_versions
from support import hostile_inputs
from support.kubernetes import (
    KNOWN,
    SERVICES,
    faults,
    one,
    overlay,
    pod,
    pods,
    rendered,
    server,
    settings,
    size,
)

from app import create_app
from app.admission.gunicorn_worker import _STOPPING_S
from app.core.settings import Settings
from gourmet.cli import main

OVERLAYS = ("development", "cpu", "gpu", "kserve")
FOLDERS = [*(f"overlays/{name}" for name in OVERLAYS), "fill"]
# Kubernetes has no schema of them.
OTHERS = ("monitoring.coreos.com/", "keda.sh/", "serving.kserve.io/")
# Each is there twice, with and without strictness.
NEWEST = list(dict.fromkeys(all_versions()))[-3:]


@pytest.mark.parametrize("version", NEWEST)
@pytest.mark.parametrize("folder", FOLDERS)
def test_kubernetes_own_schemas_take_them(folder: str, version: str) -> None:
    kinds = set()
    for each in rendered(folder):
        assert each["metadata"].get("namespace", "gourmetgram") == "gourmetgram"
        assert "namespace" in each["metadata"] or each["kind"] == "Namespace", each["kind"]
        if not each["apiVersion"].startswith(OTHERS):
            kubernetes_validate.validate(each, version, strict=True)
            kinds.add(each["kind"])
    assert kinds >= ({"Pod"} if folder == "fill" else {"Deployment", "Service", "NetworkPolicy"})


def test_a_field_that_kubernetes_does_not_know_is_refused() -> None:
    spoiled = one(overlay("cpu"), "Deployment", "triton")
    spoiled["spec"]["template"]["spec"]["terminationGracePeriod"] = 90
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(spoiled, NEWEST[-1], strict=True)


@pytest.mark.parametrize("folder", FOLDERS)
def test_pods_can_do_little_and_name_only_what_is_there(folder: str) -> None:
    manifests = rendered(folder)
    assert faults(manifests) == []
    wanted = {"fill"} if folder == "fill" else {"triton", "flask", "proxy"}
    assert {labels.get("app.kubernetes.io/name", name) for name, labels, _ in pods(manifests)} == wanted


GONE: Final = object()
OF_PODS: list[tuple[str, str, str, Any]] = [
    ("flask may run as root", "flask", "securityContext/runAsNonRoot", GONE),
    ("flask may run as root", "flask", "securityContext/runAsUser", 0),
    ("flask has all system calls", "flask", "securityContext/seccompProfile", GONE),
    ("triton has a token of the cluster", "triton", "automountServiceAccountToken", GONE),
    ("triton has variables of the services' names", "triton", "enableServiceLinks", GONE),
    ("proxy is in the node's namespaces", "proxy", "hostNetwork", True),
    ("triton has no end of shm", "triton", "volumes/2/emptyDir/sizeLimit", GONE),
    (
        "triton mounts {'name': 'models', 'hostPath'",
        "triton",
        "volumes/0",
        {"name": "models", "hostPath": {}},
    ),
    ("triton/triton claims model,", "triton", "volumes/0/persistentVolumeClaim/claimName", "model"),
    ("proxy/proxy mounts proxy, which", "proxy", "volumes/0/configMap/name", "proxy"),
    ("triton/verify can write", "triton", "initContainers/0/securityContext/readOnlyRootFilesystem", GONE),
    ("triton/verify has no limits", "triton", "initContainers/0/resources/limits/memory", GONE),
    ("triton/triton may gain privileges", "triton", "containers/0/securityContext/privileged", True),
    ("may gain privileges", "flask", "containers/0/securityContext/allowPrivilegeEscalation", GONE),
    ("flask/flask has capabilities", "flask", "containers/0/securityContext/capabilities", GONE),
    ("flask/flask has the image", "flask", "containers/0/image", "gourmetgram-web:0.1.0"),
    ("flask/flask has no limits", "flask", "containers/0/resources/limits/cpu", GONE),
    ("flask/flask has no requests", "flask", "containers/0/resources/requests/cpu", GONE),
    ("flask/flask may use another memory", "flask", "containers/0/resources/limits/memory", "1Gi"),
    ("flask/flask has no probes", "flask", "containers/0/livenessProbe", GONE),
    ("flask/flask is asked at 80", "flask", "containers/0/readinessProbe/httpGet/port", 80),
    ("flask/flask has other ports", "flask", "containers/0/ports/0/containerPort", 8080),
    ("flask/flask has variables that nobody reads: ['URL']", "flask", "containers/0/env/0/name", "URL"),
    ("variables of settings, which", "flask", "containers/0/envFrom/0/configMapRef/name", "settings"),
    ("wants API_KEYS", "flask", "containers/0/env/6/valueFrom/secretKeyRef/optional", False),
    ("triton/triton is started otherwise", "triton", "containers/0/args", ["gourmet", "up"]),
    ("triton/triton mounts tmp, which", "triton", "volumes/1/name", "temporary"),
]
A_TRITON = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "triton"}}}
OF_OTHERS: list[tuple[str, str, str, str, Any]] = [
    ("triton has no Service", "Service", "triton", "selector/tier", "models"),
    ("triton has no PodDisruptionBudget", "PodDisruptionBudget", "triton", "selector", GONE),
    ("triton has no NetworkPolicy", "NetworkPolicy", "triton", "podSelector", {}),
    ("is open", "NetworkPolicy", "nothing-else", "policyTypes", ["Ingress"]),
    ("triton lets in others", "NetworkPolicy", "triton", "ingress/0/from", [{"podSelector": {}}]),
    ("triton lets in others", "NetworkPolicy", "triton", "ingress/0/from", GONE),
    ("triton lets in others", "NetworkPolicy", "triton", "ingress/0/from/0", {"namespaceSelector": {}}),
    ("triton lets in others", "NetworkPolicy", "triton", "ingress/0/from/0", {"ipBlock": {"cidr": "::/0"}}),
    ("triton lets in others", "NetworkPolicy", "triton", "ingress/1/ports", [{"port": 8000}]),
    ("triton lets in others", "NetworkPolicy", "triton", "ingress/1/ports", [{"port": 8002, "endPort": 9}]),
    ("flask lets in others", "NetworkPolicy", "flask", "ingress/0/ports", GONE),
    ("triton may reach others", "NetworkPolicy", "triton", "egress", [{"to": [A_TRITON]}]),
    ("flask may reach others", "NetworkPolicy", "flask", "egress/0/to", GONE),
    ("flask may reach others", "NetworkPolicy", "flask", "egress/0/to/0", {"podSelector": {}}),
    ("proxy may reach others", "NetworkPolicy", "proxy", "egress/1/ports", [{"port": 53}, {"port": 80}]),
    (
        "its policy opens 8000, 8001",
        "NetworkPolicy",
        "triton",
        "ingress",
        [{"ports": [{"port": 8000}, {"port": 8001}]}],
    ),
]


def change(at: Any, path: str, value: Any) -> None:
    *way, last = (int(step) if step.isdigit() else step for step in path.split("/"))
    for step in way:
        at = at[step]
    if value is GONE:
        del at[last]
    else:
        at[last] = value


@pytest.mark.parametrize(("fault", "name", "path", "value"), OF_PODS)
def test_a_pod_that_may_do_more_or_names_what_is_not_there_is_said(
    fault: str, name: str, path: str, value: Any
) -> None:
    manifests = overlay("cpu")
    change(pod(manifests, name), path, value)
    found = faults(manifests)
    assert any(fault in each for each in found), found


@pytest.mark.parametrize(("fault", "kind", "name", "path", "value"), OF_OTHERS)
def test_a_pod_that_is_not_selected_or_reached_by_others_is_said(
    fault: str, kind: str, name: str, path: str, value: Any
) -> None:
    manifests = overlay("cpu")
    change(one(manifests, kind, name)["spec"], path, value)
    found = faults(manifests)
    assert any(fault in each for each in found), found


def test_a_policy_of_any_name_that_opens_triton_or_lets_it_out_is_said() -> None:
    manifests = overlay("cpu")
    policy = {"kind": "NetworkPolicy", "metadata": {"name": "for-a-while"}}
    every = {"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}], "ports": [{"port": 8000}]}]}
    out = {"podSelector": {"matchExpressions": [{"key": "x", "operator": "Exists"}]}, "egress": [{}]}
    for spec, fault in ((every, "lets in others than {'flask'}"), (out, "may reach others than it has to")):
        assert f"triton {fault}" in faults([*manifests, {**policy, "spec": spec}])


@pytest.mark.parametrize("name", OVERLAYS)
def test_prometheus_alone_comes_past_the_proxy(name: str) -> None:
    """Where its namespace has a Grafana, that may be everybody's; and the app believes the proxy's header."""
    for policy in ("flask", "triton"):
        rules = one(overlay(name), "NetworkPolicy", policy)["spec"]["ingress"]
        others = [peer for rule in rules for peer in rule["from"] if "namespaceSelector" in peer]
        assert [peer["podSelector"]["matchLabels"] for peer in others] == [
            {"app.kubernetes.io/name": "prometheus"}
        ]


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_app_understands_its_variables_and_finds_triton_behind_a_headless_service(name: str) -> None:
    manifests = overlay(name)
    given = {each["name"]: each["value"] for each in server(manifests, "flask")["env"] if "value" in each}
    assert settings(manifests).keys() <= KNOWN["flask"]
    understood = Settings.from_env(settings(manifests) | given)
    assert understood.models == Settings().models
    assert understood.trusted_proxies == 1
    service = one(manifests, "Service", "triton")["spec"]
    assert service["clusterIP"] == "None", "the app spreads requests over the pods itself"
    ports = {each["name"]: each["port"] for each in service["ports"]}
    assert understood.triton_url == f"triton:{ports['http']}"
    assert understood.triton_grpc_url == f"triton:{ports['grpc']}"
    assert understood.triton_metrics_url == f"http://triton:{ports['metrics']}/metrics"


@pytest.mark.parametrize("name", OVERLAYS)
def test_probes_ask_what_composes_health_checks_ask(name: str) -> None:
    manifests = overlay(name)
    triton = server(manifests, "gourmetgram-triton" if name == "kserve" else "triton")
    compose = SERVICES["triton"]["healthcheck"]
    for kind in ("startupProbe", "readinessProbe"):
        assert triton[kind]["exec"]["command"] == compose["test"][1:]
        assert f"{triton[kind]['timeoutSeconds']}s" == compose["timeout"]
    start = triton["startupProbe"]
    assert f"{start['periodSeconds'] * start['failureThreshold']}s" == compose["start_period"]
    flask = server(manifests, "flask")
    asked = [flask[kind]["httpGet"]["path"] for kind in ("startupProbe", "readinessProbe", "livenessProbe")]
    assert asked == ["/readyz", "/healthz", "/healthz"]
    assert set(asked) <= {str(rule) for rule in create_app(Settings()).url_map.iter_rules()}


@pytest.mark.parametrize("name", OVERLAYS)
def test_what_ends_has_time_for_what_it_was_asked(name: str) -> None:
    manifests = overlay(name)
    name = "gourmetgram-triton" if name == "kserve" else "triton"
    longest = Settings().generate_deadline_s
    triton, flask = pod(manifests, name), pod(manifests, "flask")
    (drain,) = re.findall(r"--graceful-timeout (\d+)", yaml.safe_dump(flask))
    assert int(drain) >= longest + _STOPPING_S
    for spec, last in ((triton, 5), (flask, int(drain)), (pod(manifests, "proxy"), longest)):
        pause = spec["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
        assert pause + last <= spec["terminationGracePeriodSeconds"]
    # Triton itself waits three seconds: until the app asks elsewhere, and what it asked before is answered.
    assert triton["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"] >= longest + 10


def test_memory_that_is_files_leaves_room_for_the_programs() -> None:
    for name, _, spec in pods(overlay("gpu")):
        files = sum(
            size(each["emptyDir"]["sizeLimit"])
            for each in spec["volumes"]
            if each.get("emptyDir", {}).get("medium") == "Memory"
        )
        limit = size(spec["containers"][0]["resources"]["limits"]["memory"])
        assert 0 < files <= limit * 3 / 4, name
    shared = next(each for each in pod(overlay("cpu"), "triton")["volumes"] if each["name"] == "shm")
    assert shared["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Gi"}
    assert SERVICES["triton"]["shm_size"] == "1gb"


def test_models_are_verified_before_triton_and_read_only() -> None:
    for name in ("cpu", "gpu"):
        spec = pod(overlay(name), "triton")
        (verify,) = spec["initContainers"]
        assert verify["image"] == spec["containers"][0]["image"]
        assert verify["command"] == ["python3", "-m", "gourmet.runtime.manifest", "/models"]
        for container in (verify, spec["containers"][0]):
            (mount,) = (each for each in container["volumeMounts"] if each["name"] == "models")
            assert mount == {"name": "models", "mountPath": "/models", "readOnly": True}


def test_threads_of_nvidias_onnx_backend_are_as_many_as_the_pod_has_processors() -> None:
    triton = server(overlay("gpu"), "triton")
    assert "--backend-config=onnxruntime,enable-global-threadpool=1" in triton["args"]
    threads = triton["resources"]["limits"]["cpu"]
    assert f"--backend-config=onnxruntime,intra_op_thread_count={threads}" in triton["args"]
    assert triton["resources"]["limits"]["nvidia.com/gpu"] == 1


def test_the_doctor_says_what_is_wrong_with_manifests_of_a_file_and_of_stdin(tmp_path: Path) -> None:
    manifests = overlay("cpu")
    change(pod(manifests, "flask"), "containers/0/readinessProbe/httpGet/port", 80)
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all(manifests))
    spoiled = CliRunner().invoke(main, ["doctor", "--cluster", str(tmp_path / "all.yaml")])
    assert spoiled.exit_code == 1
    words = "flask/flask is asked at 80, where it does not listen"
    assert spoiled.output.split() == ["fail", "cluster", *words.split()]
    piped = CliRunner().invoke(main, ["doctor", "--cluster", "-"], yaml.safe_dump_all(overlay("gpu")))
    assert piped.output.split()[:3] == ["ok", "cluster", str(len(overlay("gpu")))]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [", "cannot be read as manifests"),
        ("- 1", "has no whole manifests"),
        ("kind: Deployment", "has no whole manifests"),
        ("kind: Service", "has no manifests of pods"),
        ("kind: Pod\nmetadata: {name: a}\nspec: {containers: 3}", "has no whole manifests"),
        ("", "has no manifests of pods"),
        ("[" * 5000, "cannot be read as manifests"),
    ],
)
def test_what_is_no_manifest_of_pods_is_refused_in_a_sentence(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "some.yaml").write_text(text)
    ran = CliRunner().invoke(main, ["doctor", "--cluster", str(tmp_path / "some.yaml")])
    assert ran.exit_code
    assert says in str(ran.exception or "") + ran.output


@pytest.mark.parametrize("name", hostile_inputs.manifests())
def test_manifests_that_cost_more_than_they_are_long_are_refused_at_once(name: str) -> None:
    began = time.process_time()
    piped = CliRunner().invoke(main, ["doctor", "--cluster", "-"], hostile_inputs.manifests()[name])
    assert piped.exit_code == 1
    assert piped.output.startswith("Error: - ")
    assert time.process_time() - began < 3


def test_manifests_of_stdin_are_looked_at_whole_or_not_at_all() -> None:
    piped = CliRunner().invoke(main, ["doctor", "--cluster", "-"], b"kind: Pod\n#" + b"x" * (4 << 20))
    assert "Error: - cannot be read as manifests: it is larger than 4 MB" in piped.output
