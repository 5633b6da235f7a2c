"""The manifests of deploy/kubernetes are valid and restrained, and agree with the code, compose and images.

They were never applied to a cluster.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from kubernetes_rules import MADE, made
from kubernetes_validate.utils import all_versions
from support.kubernetes import (
    FOLDER,
    IMAGES,
    ROOT,
    SERVICES,
    Manifest,
    manifests_of,
    of_kind,
    one,
    overlay,
    pod,
    pods,
    rendered,
    server,
    settings,
)

from app import create_app
from app.web.settings import VARIABLES, Settings

OVERLAYS = ("development", "cpu", "gpu")
FOLDERS = [f"overlays/{name}" for name in OVERLAYS]
# Kubernetes has no schema of the Prometheus operator's objects and of the Gateway API's.
OTHERS = ("monitoring.coreos.com/", "gateway.networking.k8s.io/")
NEWEST = all_versions()[-1]
NGINX = (ROOT / "proxy" / "nginx.conf").read_text()


@pytest.mark.slow  # `make check` runs it
def test_the_manifests_are_valid_by_kubernetes_own_schemas() -> None:
    # The overlays have many in common, and each costs the reading of a large schema.
    different = {json.dumps(manifest): manifest for folder in FOLDERS for manifest in rendered(folder)}
    for manifest in different.values():
        assert manifest["metadata"].get("namespace", "gourmetgram") == "gourmetgram"
        if not manifest["apiVersion"].startswith(OTHERS):
            kubernetes_validate.validate(manifest, NEWEST, strict=True)


@pytest.mark.parametrize("folder", FOLDERS)
def test_pods_run_our_images_without_rights_and_within_limits(folder: str) -> None:
    for name, spec in pods(rendered(folder)):
        assert spec["securityContext"]["runAsNonRoot"], name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert (spec["automountServiceAccountToken"], spec["enableServiceLinks"]) == (False, False), name
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            security = container["securityContext"]
            assert container["image"] in IMAGES
            assert not security["allowPrivilegeEscalation"]
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert security["readOnlyRootFilesystem"]
            assert container["resources"]["limits"].keys() >= {"cpu", "memory"}


@pytest.mark.parametrize("name", OVERLAYS)
def test_only_the_web_app_reaches_triton_and_only_prometheus_bypasses_the_proxy(name: str) -> None:
    """The app believes the proxy's header, and a Grafana beside Prometheus may be everybody's."""
    manifests = overlay(name)
    closed = one(manifests, "NetworkPolicy", "nothing-else")["spec"]
    assert closed == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    for policy, allowed in (("triton", "flask"), ("flask", "proxy")):
        rules = one(manifests, "NetworkPolicy", policy)["spec"]["ingress"]
        peers = [peer for rule in rules for peer in rule["from"]]
        names = [
            ("namespaceSelector" in peer, peer["podSelector"]["matchLabels"]["app.kubernetes.io/name"])
            for peer in peers
        ]
        assert names == [(False, allowed), (True, "prometheus")]


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_app_understands_its_variables_and_finds_triton_by_its_service(name: str) -> None:
    manifests = overlay(name)
    container = server(manifests, "flask")
    variables = {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}
    known = {*VARIABLES.values(), *settings(manifests), "GUNICORN_CMD_ARGS"}
    assert {entry["name"] for entry in container["env"]} <= known
    understood = Settings.from_env(settings(manifests) | variables)
    assert understood.models == Settings().models
    assert understood.trusted_proxies == 1
    ports = {port["name"]: port["port"] for port in one(manifests, "Service", "triton")["spec"]["ports"]}
    assert understood.triton_url == f"triton:{ports['http']}"
    assert understood.triton_grpc_url == f"triton:{ports['grpc']}"
    assert understood.triton_metrics_url == f"http://triton:{ports['metrics']}/metrics"


@pytest.mark.parametrize("name", OVERLAYS)
def test_probes_run_the_health_checks_of_compose(name: str) -> None:
    manifests = overlay(name)
    triton = server(manifests, "triton")
    compose = SERVICES["triton"]["healthcheck"]
    for kind in ("startupProbe", "readinessProbe"):
        assert triton[kind]["exec"]["command"] == compose["test"][1:]
        assert f"{triton[kind]['timeoutSeconds']}s" == compose["timeout"]
    start = triton["startupProbe"]
    seconds = f"{start['periodSeconds'] * start['failureThreshold']}s"
    cpu_stack = (ROOT / "docker-compose.cpu.yaml").read_text()
    assert f"start_period: {seconds}\n" in cpu_stack or (name, seconds) == ("gpu", compose["start_period"])
    flask = server(manifests, "flask")
    paths = [flask[kind]["httpGet"]["path"] for kind in ("startupProbe", "readinessProbe", "livenessProbe")]
    assert paths == ["/healthz"] * 3, "the app stays healthy while Triton's image is pulled for half an hour"
    assert set(paths) <= {str(rule) for rule in create_app(Settings()).url_map.iter_rules()}


@pytest.mark.parametrize("name", OVERLAYS)
def test_a_pod_has_time_to_finish_its_requests_before_it_ends(name: str) -> None:
    manifests = overlay(name)
    longest = Settings().generate_deadline_s
    triton, flask = pod(manifests, "triton"), pod(manifests, "flask")
    (drain,) = re.findall(r"--graceful-timeout (\d+)", yaml.safe_dump(flask))
    assert int(drain) >= longest
    for spec, last in ((triton, 5), (flask, int(drain)), (pod(manifests, "proxy"), longest)):
        pause = spec["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
        assert pause + last <= spec["terminationGracePeriodSeconds"]
    # Triton itself waits three seconds: what it was asked before is answered in this pause.
    assert triton["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"] >= longest + 10


def test_without_the_secret_of_its_keys_the_app_does_not_start() -> None:
    for name in ("cpu", "gpu"):
        (keys,) = (entry for entry in server(overlay(name), "flask")["env"] if entry["name"] == "API_KEYS")
        assert keys["valueFrom"] == {"secretKeyRef": {"name": "web-keys", "key": "API_KEYS"}}


def changed(folder: Path, name: str, old: str, new: str) -> list[Manifest]:
    """An overlay whose kustomization has `new` in place of `old`."""
    shutil.copytree(FOLDER, folder / "deploy" / "kubernetes")
    shutil.copytree(ROOT / "proxy", folder / "proxy")
    path = folder / "deploy" / "kubernetes" / "overlays" / name / "kustomization.yaml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    return manifests_of(path.parent)


def test_an_ingress_has_the_body_limit_and_timeouts_of_the_proxy(tmp_path: Path) -> None:
    manifests = changed(tmp_path, "cpu", "components/gateway", "components/ingress")
    ingress = one(manifests, "Ingress", "gourmetgram")
    (body,) = re.findall(r"client_max_body_size (\w+);", NGINX)
    (wait,) = re.findall(r"proxy_read_timeout (\d+)s;", NGINX)
    assert set(ingress["metadata"]["annotations"].values()) == {body, wait, f"{wait}s", "off", "false"}
    (rule,) = ingress["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    backend = path["backend"]["service"]
    ports = one(manifests, "Service", backend["name"])["spec"]["ports"]
    assert backend["port"]["name"] in {port["name"] for port in ports}
    assert ingress["spec"]["tls"][0]["hosts"] == [rule["host"]]
    assert settings(manifests)["TRUSTED_HOSTS"] == rule["host"]


def test_a_component_chooses_nvidia_s_runtime_for_triton(tmp_path: Path) -> None:
    with_class = changed(
        tmp_path, "gpu", "# - ../../components/runtime-class", "- ../../components/runtime-class"
    )
    assert pod(with_class, "triton")["runtimeClassName"] == "nvidia"


def test_the_prometheus_rule_is_observability_s_rules() -> None:
    assert MADE.read_text() == made(), "run `.venv/bin/python -P scripts/kubernetes_rules.py`"


def test_monitors_look_where_the_metrics_are_and_name_jobs_as_the_rules_do() -> None:
    manifests = overlay("cpu")
    jobs = {}
    for monitor in of_kind(manifests, "ServiceMonitor"):
        service = one(manifests, "Service", monitor["metadata"]["name"])
        assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        (endpoint,) = monitor["spec"]["endpoints"]
        assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
        jobs[endpoint["relabelings"][0]["replacement"]] = endpoint["interval"]
    prometheus = yaml.safe_load((ROOT / "observability" / "prometheus.yml").read_text())
    wanted = prometheus["global"]["scrape_interval"]
    assert jobs == {scrape_config["job_name"]: wanted for scrape_config in prometheus["scrape_configs"]}
