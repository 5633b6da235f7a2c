"""The paths, ports and variables in the compose files and Dockerfiles exist and agree with the code."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.utils import canonicalize_name

from app.api.uploads import WRAPPING_BYTES
from app.web.settings import Settings
from gourmet.served.instances import CONFIG_NAME_ENV
from gourmet.stack.triton_server import IMAGE_ENV, TritonOptions

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ROOT / "requirements"
DOCKERFILES = sorted(ROOT.glob("Dockerfile.*"))
MODELS = ROOT / "deploy" / "kubernetes" / "Dockerfile.models"


def instructions(path: Path, name: str) -> list[str]:
    """The arguments of every instruction `name` of a Dockerfile, without comments, continued lines joined."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return re.findall(rf"^{name}\s+(.*)$", joined, re.MULTILINE)


class Compose(yaml.SafeLoader):
    """Read YAML with the tag by which compose takes a setting of an earlier file away."""


class Reset:
    """The value of a setting that `!reset` takes away."""


Compose.add_constructor("!reset", lambda loader, node: Reset())


def compose(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.load((ROOT / name).read_text(), Compose)
    return loaded


BASE = compose("docker-compose.yaml")
# The services that are built here, the proxy in front of them, and the observers.
SERVICES = {name: service for name, service in BASE["services"].items() if "build" in service}
PROXY = BASE["services"]["proxy"]
TRITON_PORTS = BASE["services"]["triton-ports"]
OBSERVERS = {
    name: each for name, each in BASE["services"].items() if each.get("profiles") == ["observability"]
}
HOME = "${GOURMET_HOME:-~/.local/share/gourmet}"
OWN = {name: f"{HOME}/{name}:/gourmet/{name}:ro,z" for name in ("systems", "models")}
NGINX = (ROOT / "proxy" / "nginx.conf").read_text()


def dockerfile(service: dict[str, Any]) -> Path:
    return ROOT / service["build"]["dockerfile"]


@pytest.mark.parametrize("path", [*DOCKERFILES, MODELS], ids=lambda path: path.name)
def test_base_images_are_named_with_a_version_and_the_last_user_is_not_root(path: Path) -> None:
    base, *stages = (argument.split()[0] for argument in instructions(path, "FROM"))
    # Dependabot follows no variable.
    assert re.fullmatch(r"[\w./-]+:\d+\.\d+[\w.-]*(@sha256:[0-9a-f]{64})?", base), base
    assert set(stages) <= {"base"}
    assert instructions(path, "USER")[-1] == "1000:1000"


def test_dependabot_looks_where_images_are_named() -> None:
    updates = yaml.safe_load((ROOT / ".github" / "dependabot.yml").read_text())["updates"]
    (docker,) = (update for update in updates if update["package-ecosystem"] == "docker")
    images = [
        path for path in MODELS.parent.rglob("*.yaml") if re.search(r"image: \S+:\d+\.", path.read_text())
    ]
    folders = {path.parent.relative_to(ROOT) for path in (MODELS, *DOCKERFILES, *images)}
    assert set(docker["directories"]) == {f"/{folder}".replace("/.", "/") for folder in folders}
    assert "docker-compose" in {update["package-ecosystem"] for update in updates}
    text = (ROOT / "docker-compose.yaml").read_text()
    for service in BASE["services"].values():
        assert "build" in service or f"    image: {service['image']}\n" in text, "not by an alias"


def test_the_proxy_is_published_and_triton_and_the_lab_on_loopback_only() -> None:
    assert all(port.startswith("127.0.0.1:") for port in TRITON_PORTS["ports"])
    assert SERVICES["jupyter"]["ports"] == ["${LAB_ADDRESS:-127.0.0.1}:${JUPYTER_PORT:-8888}:8888"]
    for name in ("triton", "flask"):
        assert "ports" not in SERVICES[name]
    assert PROXY["ports"] == ["${WEB_PORT:-8080}:8080"]


def test_the_proxy_has_the_body_limit_of_the_app() -> None:
    (largest,) = re.findall(r"^\s*client_max_body_size\s*(\d+)m;$", NGINX, re.MULTILINE)
    assert Settings().max_call_bytes + WRAPPING_BYTES <= int(largest) << 20


def test_user_systems_are_mounted_read_only_where_the_images_read_them() -> None:
    """A system that is data needs no rebuild: the web has its description, the others its models too."""
    both = {"systems", "models"}
    for name, wanted in (("triton", both), ("jupyter", both), ("flask", {"systems"})):
        mounts = set(SERVICES[name]["volumes"])
        assert {OWN[variable] for variable in wanted} == mounts & set(OWN.values()), name
    for path in DOCKERFILES:
        assert "GOURMET_HOME=/gourmet" in instructions(path, "ENV")[-1].split(), path.name
    for path in (ROOT / "Dockerfile.triton", ROOT / "Dockerfile.triton-cpu"):
        assert "/gourmet/models" in instructions(path, "CMD")[0]
        assert "mkdir -p /gourmet/models" in path.read_text(), "without the mounts it starts all the same"


def test_prometheus_and_grafana_ask_by_the_names_and_ports_of_the_services() -> None:
    config = yaml.safe_load((ROOT / "observability" / "prometheus.yml").read_text())
    targets = {
        job["job_name"]: job["static_configs"][0]["targets"][0].split(":") for job in config["scrape_configs"]
    }
    host, port = targets.pop("proxy")
    assert (host, f"listen {port};" in NGINX) == ("proxy", True)
    for host, port in targets.values():
        assert port in instructions(dockerfile(SERVICES[host]), "EXPOSE")[0].split()
    assert targets["triton"][1] == str(TritonOptions(()).metrics_port)
    folder = ROOT / "observability" / "grafana" / "provisioning"
    (source,) = yaml.safe_load((folder / "datasources" / "prometheus.yaml").read_text())["datasources"]
    host, port = source["url"].removeprefix("http://").split(":")
    assert port == OBSERVERS[host]["ports"][0].rpartition(":")[2]
    (provider,) = yaml.safe_load((folder / "dashboards" / "gourmetgram.yaml").read_text())["providers"]
    mounts = [mount.split(":")[1] for mount in OBSERVERS["grafana"]["volumes"]]
    assert provider["options"]["path"] in mounts


def test_the_app_reads_the_variables_of_compose_and_finds_triton_by_its_service() -> None:
    variables = SERVICES["flask"]["environment"].items()
    environment = {name: re.sub(r"\$\{\w+:-(.*?)\}", r"\1", text) for name, text in variables}
    settings = Settings.from_env(environment)
    assert settings.trusted_hosts == ("flask", "proxy"), "the names by which Prometheus and the lab ask"
    assert settings.triton_url == "triton:8000"
    assert settings.models == Settings().models
    host, port = settings.triton_url.split(":")
    assert host in SERVICES
    assert port == TRITON_PORTS["ports"][0].rpartition(":")[2]


def test_without_a_gpu_nvidias_image_asks_for_no_device_and_reads_the_configs_of_the_cpu() -> None:
    (triton,) = compose("docker-compose.nvidia-cpu.yaml")["services"].values()
    assert isinstance(triton["deploy"], Reset)
    assert triton["environment"][CONFIG_NAME_ENV] == ""
    assert f"{CONFIG_NAME_ENV}=gpu" in instructions(ROOT / "Dockerfile.triton", "ENV")[0].split()


def test_both_tritons_are_started_by_the_same_command() -> None:
    of_cpu, of_nvidia = (
        json.loads(instructions(ROOT / f"Dockerfile.{name}", "CMD")[0]) for name in ("triton-cpu", "triton")
    )
    assert of_cpu == of_nvidia
    assert of_cpu[:3] == ["gourmet", "up", "--triton-only"]
    assert f"{IMAGE_ENV}=/opt/tritonserver" in instructions(ROOT / "Dockerfile.triton", "ENV")[0].split()


def test_the_health_check_of_triton_asks_a_model_and_no_service_waits_for_it() -> None:
    check = SERVICES["triton"]["healthcheck"]["test"][-1]
    for path in (ROOT / "Dockerfile.triton", ROOT / "Dockerfile.triton-cpu"):
        assert f"scripts/containers/{Path(check).name} {Path(check).parent}/" in path.read_text()
        # The check ends the first process, which is the server itself, and the container is started again.
        assert json.loads(instructions(path, "CMD")[0])[0] == "gourmet"
        assert "ENTRYPOINT" not in path.read_text()
    first = runpy.run_path(str(ROOT / "scripts" / "containers" / Path(check).name))["FIRST_PROCESS"]
    assert (first, SERVICES["triton"]["restart"]) == (1, "unless-stopped")
    for name, service in (SERVICES | {"proxy": PROXY}).items():
        assert service["healthcheck"]
        assert service.get("depends_on") in (None, ["triton"], ["flask"]), name
    # The page is published at once, and its check is as patient as Triton's.
    starts = {SERVICES[name]["healthcheck"]["start_period"] for name in ("flask", "triton")}
    assert len(starts) == 1


@pytest.mark.promise("SECURITY 15")
def test_every_service_is_restrained_and_has_limits() -> None:
    for name, service in SERVICES.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
    for name in ("triton", "flask"):
        assert SERVICES[name]["read_only"] is True, name
    assert "shm_size" in SERVICES["triton"]
    for name, service in (SERVICES | OBSERVERS | {"proxy": PROXY}).items():
        assert re.fullmatch(r"\d+[mg]|\$\{\w+_MEMORY:-\d+g\}", service["mem_limit"]), name
        assert re.fullmatch(r"\d{3,}|\$\{TRITON_PIDS:-\d{4,}\}", str(service["pids_limit"])), name
        assert service["logging"]["options"].keys() == {"max-size", "max-file"}, name
    for name in ("triton", "flask"):
        assert re.fullmatch(r"\$\{\w+:-0\}", SERVICES[name]["cpus"]), (
            "all CPUs, unless a variable limits them"
        )


HASHED = {"web": "flask", "triton-cpu": "triton-cpu", "triton": "triton", "lab": "jupyter"}


@pytest.mark.parametrize("image", HASHED)
def test_an_image_installs_the_pinned_packages_by_hash(image: str) -> None:
    hashed = (REQUIREMENTS / f"{image}.hashes.txt").read_text()
    text = (ROOT / f"Dockerfile.{HASHED[image]}").read_text()
    (install,) = re.findall(r"--require-hashes -r \S+\.hashes\.txt", text)
    assert install.endswith(f"/{image}.hashes.txt")
    matches = re.findall(r"^([\w.-]+)==(\S+)((?: \\\n +--hash=sha256:[0-9a-f]{64})+)$", hashed, re.MULTILINE)
    assert len(matches) == len(re.findall("==", hashed))
    pins = "".join(path.read_text() for path in REQUIREMENTS.glob("*.txt") if ".hashes." not in path.name)
    pairs = re.findall(r"^([\w.-]+)[^=\n]*==(\S+)", pins, re.M)
    pinned = {canonicalize_name(name): pin for name, pin in pairs}
    versions = {canonicalize_name(name): pin for name, pin, _ in matches}
    assert versions == {name: pinned[name] for name in versions}
    wanted = runpy.run_path(str(ROOT / "scripts" / "containers" / "hashes.py"))["IMAGES"][image][1]
    direct = set[str]()
    for word in (word for call in wanted for word in call):
        text = (ROOT / word).read_text() if word.endswith(".txt") else word
        direct |= {canonicalize_name(name) for name in re.findall(r"^[a-z][\w.-]*", text, re.M)}
    assert direct <= versions.keys()


def test_the_web_image_has_what_its_python_and_its_settings_need() -> None:
    hashed = (REQUIREMENTS / "web.hashes.txt").read_text()
    # Of any Python 3.11: what only its first ones need, as Debian's is one, must not be missing.
    # Compose and the manifests give it TRITON_GRPC_URL, with which it does not start without gRPC.
    assert "TRITON_GRPC_URL" in SERVICES["flask"]["environment"]
    for name in ("async-timeout", "grpcio", "protobuf"):
        assert f"\n{name}==" in hashed


def test_keys_come_from_a_secret_where_the_app_looks_for_them(tmp_path: Path) -> None:
    overlay = compose("docker-compose.keys.yaml")
    flask = overlay["services"]["flask"]
    (secret,) = flask["secrets"]
    assert overlay["secrets"].keys() == {secret}
    (variable,) = flask["environment"]
    assert flask["environment"][variable] == f"/run/secrets/{secret}"
    (tmp_path / secret).write_text("a-key-of-sixteen-characters\n")
    settings = Settings.from_env({variable: str(tmp_path / secret)})
    assert settings.api_keys == ("a-key-of-sixteen-characters",)


def test_tritons_keys_reach_the_lab_and_not_the_web_app() -> None:
    assert f"keys:{SERVICES['triton']['environment']['GOURMET_KEYS']}" in SERVICES["triton"]["volumes"]
    assert f"keys:{SERVICES['jupyter']['environment']['GOURMET_KEYS']}:ro" in SERVICES["jupyter"]["volumes"]
    assert SERVICES["flask"]["volumes"] == ["corrections:/corrections", OWN["systems"]]
    assert not {"TRITON_ADMIN_KEY", "GOURMET_KEYS"} & set(SERVICES["flask"]["environment"])
    for path in DOCKERFILES:
        if path.name != "Dockerfile.flask":
            assert "install -d -m 0700 -o 1000 -g 1000 /run/gourmet" in path.read_text()
