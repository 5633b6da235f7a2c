"""What deploy/kubernetes adds for an ingress controller, Prometheus, KEDA and KServe."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from kubernetes_rules import MADE, made
from support.kubernetes import FOLDER, IMAGES, ROOT, Manifest, of_kind, one, overlay, settings

NGINX = (ROOT / "proxy" / "nginx.conf").read_text()
RULES = yaml.safe_load((ROOT / "observability" / "rules.yml").read_text())


def test_an_ingress_lets_through_what_the_proxy_takes_and_waits_as_long() -> None:
    manifests = overlay("cpu")
    ingress = one(manifests, "Ingress", "gourmetgram")
    (body,) = re.findall(r"client_max_body_size (\w+);", NGINX)
    (wait,) = re.findall(r"proxy_read_timeout (\d+)s;", NGINX)
    assert set(ingress["metadata"]["annotations"].values()) == {body, wait, f"{wait}s", "off", "false"}
    (rule,) = ingress["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    backend = path["backend"]["service"]
    ports = one(manifests, "Service", backend["name"])["spec"]["ports"]
    assert backend["port"]["name"] in {each["name"] for each in ports}
    assert ingress["spec"]["tls"][0]["hosts"] == [rule["host"]]
    assert settings(manifests)["TRUSTED_HOSTS"] == rule["host"]


def test_the_prometheus_rule_is_observability_s_rules() -> None:
    assert MADE.read_text() == made(), "run `.venv/bin/python -P scripts/kubernetes_rules.py`"
    (rule,) = of_kind(overlay("cpu"), "PrometheusRule")
    assert rule["spec"] == RULES


def test_monitors_look_where_the_metrics_are_and_name_jobs_as_the_rules_do() -> None:
    manifests = overlay("cpu")
    jobs = {}
    for monitor in of_kind(manifests, "ServiceMonitor"):
        service = one(manifests, "Service", monitor["metadata"]["name"])
        assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        (endpoint,) = monitor["spec"]["endpoints"]
        assert endpoint["port"] in {each["name"] for each in service["spec"]["ports"]}
        jobs[endpoint["relabelings"][0]["replacement"]] = endpoint["interval"]
    prometheus = yaml.safe_load((ROOT / "observability" / "prometheus.yml").read_text())
    wanted = prometheus["global"]["scrape_interval"]
    assert jobs == {each["job_name"]: wanted for each in prometheus["scrape_configs"]}


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_autoscaling_asks_for_figures_that_are_there_and_nothing_else_sets_how_many(name: str) -> None:
    manifests = overlay(name)
    scaled = of_kind(manifests, "ScaledObject")
    assert {each["metadata"]["name"] for each in scaled} == {"triton", "flask"}
    known = {rule["record"] for group in RULES["groups"] for rule in group["rules"] if "record" in rule}
    known |= set(re.findall(r"`(\w+)`", (ROOT / "observability" / "README.md").read_text()))
    for each in scaled:
        assert "replicas" not in one(manifests, "Deployment", each["spec"]["scaleTargetRef"]["name"])["spec"]
        for trigger in each["spec"]["triggers"]:
            (asked,) = re.findall(r"^(?:max|sum)\(([\w:]+)\)$", trigger["metadata"]["query"])
            assert asked in known
            # A mean is the same for any number of pods; a sum is shared out among them.
            assert trigger["metricType"] == ("Value" if ":mean" in asked else "AverageValue")


def of_canaries(service: Manifest) -> list[str]:
    """What KServe 0.20 refuses of an InferenceService in mode Standard, or silently leaves undone."""
    found = []
    predictor, canaries = service["spec"]["predictor"], service["spec"].get("canary", [])
    if service["metadata"].get("annotations", {}).get("serving.kserve.io/deploymentMode") != "Standard":
        found.append("the mode is not said")
    if "canaryTrafficPercent" in predictor:
        found.append("canaryTrafficPercent does nothing in this mode")
    names = [each["predictor"]["name"] for each in canaries]
    if len({*names}) < len(names):
        found.append("two canaries have one name")
    if sum(each["trafficPercent"] for each in canaries) > 100:
        found.append("canaries get more than all")
    for each in canaries:
        if each["predictor"].get("minReplicas", 0) > predictor["minReplicas"]:
            found.append("a canary has more replicas than the stable one")
        if {"maxReplicas", "autoScaling"} & each["predictor"].keys():
            found.append("a canary scales by itself")
    return found


def kserve_with_the_documented_canary() -> Manifest:
    service = one(overlay("kserve"), "InferenceService", "gourmetgram")
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    (example,) = re.findall(r"```yaml\n(spec:\n  canary:.+?)```", page, re.DOTALL)
    service["spec"] |= yaml.safe_load(example)["spec"]
    return service


def test_the_inference_service_and_the_canary_of_the_page_are_what_kserve_takes() -> None:
    service = kserve_with_the_documented_canary()
    assert of_canaries(service) == []
    (runtime,) = of_kind(overlay("kserve"), "ServingRuntime")
    model = service["spec"]["predictor"]["model"]
    assert model["runtime"] == runtime["metadata"]["name"]
    assert model["protocolVersion"] in runtime["spec"]["protocolVersions"]
    assert model["modelFormat"]["name"] in {each["name"] for each in runtime["spec"]["supportedModelFormats"]}
    (metric,) = service["spec"]["predictor"]["autoScaling"]["metrics"]
    (scaled,) = (
        each for each in of_kind(overlay("cpu"), "ScaledObject") if each["metadata"]["name"] == "triton"
    )
    asked = scaled["spec"]["triggers"][0]["metadata"]
    assert metric["external"]["metric"] == {
        "backend": "prometheus",
        "query": asked["query"],
        "serverAddress": asked["serverAddress"],
    }
    assert metric["external"]["target"] == {"type": "Value", "value": asked["threshold"]}
    claims = {each["metadata"]["name"] for each in of_kind(overlay("kserve"), "PersistentVolumeClaim")}
    assert model["storageUri"].removeprefix("pvc://") in claims


@pytest.mark.parametrize(
    ("fault", "spoil"),
    [
        (
            "the mode is not said",
            lambda it: it["metadata"]["annotations"].pop("serving.kserve.io/deploymentMode"),
        ),
        ("canaryTrafficPercent", lambda it: it["spec"]["predictor"].update(canaryTrafficPercent=10)),
        ("one name", lambda it: it["spec"]["canary"].append(it["spec"]["canary"][0])),
        ("more than all", lambda it: it["spec"]["canary"][0].update(trafficPercent=101)),
        ("more replicas", lambda it: it["spec"]["canary"][0]["predictor"].update(minReplicas=3)),
        ("scales by itself", lambda it: it["spec"]["canary"][0]["predictor"].update(maxReplicas=3)),
    ],
)
def test_a_canary_that_kserve_would_refuse_is_named(fault: str, spoil: Callable[[Manifest], Any]) -> None:
    service = kserve_with_the_documented_canary()
    spoil(service)
    assert any(fault in each for each in of_canaries(service))


def test_images_are_named_in_one_place() -> None:
    listed = yaml.safe_load((FOLDER / "components" / "images" / "kustomization.yaml").read_text())["images"]
    ours = {image for image, (dockerfile, _) in IMAGES.items() if dockerfile}
    assert {f"{each['name']}:{each['newTag']}" for each in listed} == ours
