"""The optional parts of deploy/kubernetes for several web apps: a Redis, and a bucket of corrections.

Redis' arguments are tried on a real one, Debian's; the image is never pulled.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from kubernetes_validate.utils import all_versions
from support.eventually import eventually
from support.kubernetes import FOLDER, Manifest, faults, of_kind, one, overlay_with, pod, server

from app.admission.rate_limit import Limiter
from app.admission.shared_rates import SharedLimiter
from app.core.settings import Rate, Settings
from gourmet.serving.preflight import free_ports

REDIS = shutil.which("redis-server")
PASSWORD = "0123456789abcdef"
OVERLAYS = ["development", "cpu", "gpu", "kserve"]


def expanded(text: str, values: dict[str, str]) -> str:
    """As the kubelet does it, with variables that were named before."""
    return re.sub(r"\$\((\w+)\)", lambda found: values.get(found[1], found[0]), text)


def environment(container: Manifest, secrets: dict[str, str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for each in container["env"]:
        if "value" in each:
            values[each["name"]] = expanded(each["value"], values)
        elif each["name"] in secrets:
            values[each["name"]] = secrets[each["name"]]
    return values


def valid(manifests: list[Manifest]) -> None:
    for each in manifests:
        if each["apiVersion"].partition("/")[0] in ("v1", "apps", "networking.k8s.io", "policy"):
            kubernetes_validate.validate(each, list(all_versions())[-1], strict=True)
    assert faults(manifests) == []


@pytest.mark.parametrize("name", OVERLAYS)
def test_a_redis_is_restrained_and_reached_by_the_web_app_alone(name: str, tmp_path: Path) -> None:
    manifests = overlay_with(name, "redis", tmp_path)
    valid(manifests)
    given = environment(server(manifests, "flask"), {"REDIS_PASSWORD": PASSWORD})
    settings = Settings.from_env(given)
    assert (settings.rate_limit_storage, bool(settings.rate_limit)) == (
        f"redis://:{PASSWORD}@redis:6379/0",
        True,
    )
    assert one(manifests, "Service", "redis")["spec"]["ports"][0]["port"] == 6379
    out = one(manifests, "NetworkPolicy", "flask-to-redis")["spec"]
    assert (out["policyTypes"], out["egress"][0]["ports"]) == (["Egress"], [{"port": 6379}])
    (reached,) = out["egress"][0]["to"]
    assert reached["podSelector"] == one(manifests, "NetworkPolicy", "redis")["spec"]["podSelector"]
    # It reaches nobody: what no policy names is closed, and none lets it out.
    outward = [each["spec"] for each in of_kind(manifests, "NetworkPolicy") if "egress" in each["spec"]]
    assert reached["podSelector"] not in [each["podSelector"] for each in outward]


def test_a_redis_without_a_password_or_that_lets_in_others_is_said(tmp_path: Path) -> None:
    manifests = overlay_with("development", "redis", tmp_path)
    one(manifests, "NetworkPolicy", "redis")["spec"]["ingress"][0]["from"] = [{"podSelector": {}}]
    server(manifests, "redis")["env"][0]["valueFrom"]["secretKeyRef"]["optional"] = True
    assert [each.partition(",")[0] for each in faults(manifests)] == [
        "redis/redis wants REDIS_PASSWORD under another name",
        "redis lets in others than {'flask'}",
    ]


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[tuple[Manifest, int]]:
    """The container of the manifests as a real server, and its port."""
    if not REDIS:
        pytest.skip("no Redis here: `apt-get install redis-server`")
    container = server(overlay_with("development", "redis", tmp_path), "redis")
    args = [
        expanded(each, environment(container, {"REDIS_PASSWORD": PASSWORD})) for each in container["args"]
    ]
    (port,) = free_ports(1)
    args[args.index("6379")] = str(port)
    where = ["--bind", "127.0.0.1", "--dir", str(tmp_path)]
    with subprocess.Popen([REDIS, *args, *where], stdout=subprocess.DEVNULL) as process:
        try:
            eventually(lambda: ping(container, port, PASSWORD) == 0)
            yield container, port
        finally:
            process.terminate()


def ping(container: Manifest, port: int, password: str) -> int:
    """The probe's status."""
    program, *args = container["readinessProbe"]["exec"]["command"]
    assert program == "valkey-cli"
    env = os.environ | environment(container, {"REDIS_PASSWORD": password})
    command = ["redis-cli", "-p", str(port), *args]
    return subprocess.run(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode


def test_a_real_redis_starts_with_its_arguments_and_two_web_apps_count_in_it(
    redis: tuple[Manifest, int], tmp_path: Path
) -> None:
    container, port = redis
    assert ping(container, port, "another password") != 0
    assert container["livenessProbe"]["exec"] == container["readinessProbe"]["exec"]
    rate, lost = Rate(3, 3600), []
    url = f"redis://:{PASSWORD}@127.0.0.1:{port}/0"
    apps = [SharedLimiter(url, Limiter(rate), lambda: lost.append(1)) for _ in range(2)]
    quotas = [apps[number % 2].take("a client") for number in range(4)]
    assert [quota.wait_s > 0 for quota in quotas] == [False, False, False, True]
    assert not lost


@pytest.mark.parametrize("name", OVERLAYS)
def test_corrections_go_to_a_bucket_that_the_web_app_alone_may_reach(name: str, tmp_path: Path) -> None:
    manifests = overlay_with(name, "corrections", tmp_path)
    valid(manifests)
    container = server(manifests, "flask")
    sources = [each["configMapRef"]["name"] for each in container["envFrom"]]
    given: dict[str, Any] = {}
    for each in of_kind(manifests, "ConfigMap"):
        given |= each["data"] if each["metadata"]["name"] in sources else {}
    assert Settings.from_env(given).keep_corrections == "s3://corrections/gourmetgram"
    assert given.keys() >= {"AWS_REGION", "AWS_ENDPOINT_URL"}
    assert environment(container, {"AWS_ACCESS_KEY_ID": "a"})["AWS_ACCESS_KEY_ID"] == "a"
    policy = one(manifests, "NetworkPolicy", "flask-to-the-store")["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= {"app.kubernetes.io/name": "flask"}.items()
    assert "AWS_ACCESS_KEY_ID" not in str(pod(manifests, "proxy"))


def test_every_component_is_in_an_overlay_or_tested_by_itself() -> None:
    there = {each.name for each in (FOLDER / "components").iterdir()}
    in_overlays = "".join(path.read_text() for path in (FOLDER / "overlays").rglob("kustomization.yaml"))
    listed = set(re.findall(r"components/([\w-]+)", in_overlays))
    assert there - listed == {"object-store", "redis", "corrections"}
