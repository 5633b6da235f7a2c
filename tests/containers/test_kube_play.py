"""The development overlay of deploy/kubernetes, played by podman: the manifests' own pods, without a cluster.

podman 4.3 knows no Services, policies and budgets, mounts no single file of a ConfigMap, restarts the init
containers of a pod whose policy is Always, gives an emptyDir at /dev/shm to root, and asks probes by shell
commands that lose their arguments. `for_podman` changes what is needed for that; the probes are asked here.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from support.kubernetes import IMAGES, Manifest, of_kind, overlay, pod
from support.needs import need
from support.web_app import Site

from gourmet.stack.preflight import free_ports
from gourmet.stack.processes import wait_until
from gourmet.systems.food11 import contract

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "triton" / "models"
SERVERS = ("triton", "flask", "proxy")
# Where the proxy's own image cannot be had: the same program, from Debian.
PROXY = """
FROM docker.io/library/python:3.11-slim-bookworm
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends nginx-light >/dev/null
USER 101
STOPSIGNAL SIGQUIT
"""


def run(*command: str | Path, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, **more)  # type: ignore[call-overload, no-any-return]


def done(*command: str | Path, **more: object) -> str:
    ran = run(*command, **more)
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]
    return ran.stdout.strip()


def for_podman(manifests: list[Manifest], shm: Path, port: int) -> list[Manifest]:
    """Pods with the name of their Service, which podman's names lead to, and the ConfigMaps they mount."""
    made = of_kind(manifests, "ConfigMap")
    for each in of_kind(manifests, "Deployment"):
        template = each["spec"]["template"]
        name, spec = each["metadata"]["name"], template["spec"]
        made.append(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "labels": template["metadata"]["labels"]},
                "spec": spec,
            }
        )
        if spec.get("initContainers"):
            spec["restartPolicy"] = "OnFailure"  # with Always the init container is started again and again
        for volume in spec["volumes"]:
            if volume["name"] == "shm":
                del volume["emptyDir"]
                volume["hostPath"] = {"path": str(shm), "type": "Directory"}
        for container in spec["containers"]:
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                container.pop(probe, None)
            files = dict[str, str]()
            for mount in container["volumeMounts"]:
                if file := mount.pop("subPath", None):
                    mount["mountPath"] += ".d"
                    files[file] = f"{mount['mountPath']}/{file}"
            if files:
                run_it = f"sed 's#exec nginx#exec nginx -c {files['nginx.conf']}#' {files['start.sh']} | sh"
                container["args"] = ["sh", "-c", run_it]
        if name == "proxy":
            spec["containers"][0]["ports"][0] |= {"hostIP": "127.0.0.1", "hostPort": port}
    for each in made:
        each["metadata"].pop("namespace", None)
    return made


@dataclass(frozen=True)
class Played:
    """What podman runs, and ways to ask it."""

    network: str
    site: Site

    def play(self, *manifests: Manifest) -> subprocess.CompletedProcess[str]:
        text = yaml.safe_dump_all(manifests)
        return run("podman", "kube", "play", "--network", self.network, "-", input=text)

    def inside(self, server: str, *command: str) -> subprocess.CompletedProcess[str]:
        return run("podman", "exec", f"{server}-{server}", *command)

    def process(self, server: str) -> int:
        """The first one of its container, or 0."""
        shown = run("podman", "inspect", f"{server}-{server}", "--format", "{{.State.Pid}}").stdout.strip()
        return int(shown or 0)

    def answers(self) -> bool:
        try:
            return self.site.request("GET", "/readyz").status == 200
        except OSError:
            return False


@pytest.fixture(scope="module")
def images() -> None:
    need("podman", "podman iptables")
    need("kubectl")
    build = shlex.split(os.environ.get("GOURMET_BUILD") or "podman build")
    for name, (dockerfile, service) in IMAGES.items():
        if dockerfile and dockerfile.name != "Dockerfile.triton":
            context = MODELS if dockerfile.name == "Dockerfile.models" else "."
            done(*build, "-f", dockerfile, "-t", name, context)
        elif service == "proxy" and run("podman", "image", "exists", name).returncode:
            if run("podman", "pull", "--quiet", name).returncode == 0:
                continue
            done(*build, "-t", f"docker.io/{name}", "-f", "-", ".", input=PROXY)


@pytest.fixture(scope="module")
def played(images: None) -> Iterator[Played]:
    """Everything."""
    for name in SERVERS:
        if not run("podman", "pod", "exists", name).returncode:
            pytest.skip(f"a pod {name} runs here already: `podman pod rm {name}`")
    own = f"gourmet-test-{uuid.uuid4().hex[:8]}"
    (port,) = free_ports(1)
    played = Played(own, Site(port))
    shm = Path("/dev/shm") / own
    shm.mkdir()
    shm.chmod(0o1777)
    done("podman", "network", "create", own)
    try:
        started = played.play(*for_podman(overlay("development"), shm, port))
        assert started.returncode == 0, started.stderr
        wait_until(played.answers, 180, "the page is not ready", poll_s=0.5)
        yield played
    finally:
        run("podman", "pod", "rm", "--force", "--time", "1", "--ignore", *SERVERS)
        for what, name in (("network", own), ("volume", "proxy"), ("volume", "settings")):
            run("podman", what, "rm", "--force", name)
        shutil.rmtree(shm, ignore_errors=True)


def classify(played: Played) -> str:
    answer = played.site.predict(contract.SYSTEM.sample())
    assert answer.status == 200, answer.body
    return str(answer.json["label"])


def photo_is_answered(played: Played) -> bool:
    with contextlib.suppress(OSError):
        return played.site.predict(contract.SYSTEM.sample()).status == 200
    return False


def test_a_photo_is_classified_and_a_sentence_translated(played: Played) -> None:
    assert classify(played) in contract.SYSTEM.labels
    asked = json.dumps({"text": "Я люблю чай."})
    answer = played.site.request("POST", "/api/v1/translate", asked.encode(), Content_Type="application/json")
    assert answer.status == 200, answer.body
    assert "tea" in answer.body.decode()


def test_the_probes_commands_say_that_models_answer(played: Played) -> None:
    (triton,) = pod(overlay("development"), "triton")["containers"]
    for probe in ("startupProbe", "readinessProbe"):
        asked = played.inside("triton", *triton[probe]["exec"]["command"])
        assert asked.returncode == 0, asked.stderr


@pytest.mark.parametrize("server", SERVERS)
def test_a_container_that_is_killed_comes_back_and_answers(played: Played, server: str) -> None:
    before = played.process(server)
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: played.process(server) not in (0, before), 60, "it did not come back", poll_s=0.5)
    # /readyz repeats for a second what was so before.
    wait_until(lambda: photo_is_answered(played), 120, "no photo is answered", poll_s=0.5)
    assert classify(played) in contract.SYSTEM.labels


@pytest.mark.parametrize("server", SERVERS)
def test_a_pod_has_no_more_rights_than_its_manifest_says(played: Played, server: str) -> None:
    status = played.inside(server, "cat", "/proc/1/status").stdout
    assert "CapEff:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status
    user = pod(overlay("development"), server)["securityContext"]["runAsUser"]
    assert f"Uid:\t{user}\t" in status
    assert "Read-only file system" in played.inside(server, "touch", "/opt/new", "/home/new").stderr
    if server == "triton":
        assert "Read-only file system" in played.inside(server, "touch", "/models/new").stderr
