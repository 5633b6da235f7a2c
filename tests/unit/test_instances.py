"""Threads and devices of one instance of a served model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gourmet.errors import GourmetError
from gourmet.served import instances


def config(*groups: dict[str, Any], **parameters: str) -> dict[str, Any]:
    return {
        "name": "m",
        "instance_group": list(groups),
        "parameters": {key: {"string_value": value} for key, value in parameters.items()},
    }


@pytest.fixture
def four_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instances, "available_cpus", lambda: 4)


@pytest.mark.usefixtures("four_cpus")
@pytest.mark.parametrize(
    ("groups", "parameter", "threads"),
    [
        ([], "", 4),
        ([{"count": 1}], "", 4),
        ([{"count": 2}], "", 2),
        ([{"count": 16}], "", 1),
        ([{"count": 1, "kind": "KIND_GPU", "gpus": [0, 1]}], "", 2),
        ([{"count": 1}, {"count": 3, "passive": True}], "", 4),
        ([{"count": 2}], "3", 3),
        ([{"count": 2}], "0", 2),
    ],
)
def test_threads_are_divided_among_instances_unless_a_parameter_sets_them(
    groups: list[dict[str, Any]], parameter: str, threads: int
) -> None:
    assert instances.cpu_threads(config(*groups, intra_op_thread_count=parameter)) == threads


@pytest.mark.parametrize("text", ["two", "-1"])
def test_a_parameter_that_is_no_number_is_refused_by_name(text: str) -> None:
    with pytest.raises(GourmetError, match=r"intra_op_thread_count.*of model 'm'"):
        instances.cpu_threads(config(intra_op_thread_count=text))


_FIRST = "sys/fs/cgroup/cpu"
_TWO_CPUS = {"cpu.cfs_quota_us": "200000\n", "cpu.cfs_period_us": "100000\n"}


def cgroup(root: Path, line: str, files: dict[str, str]) -> Path:
    for name, text in {"proc/self/cgroup": line, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("line", "files", "cpus"),
    [
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "max 100000\n"}, 8),
        (
            "0::/a/b\n",
            {"sys/fs/cgroup/a/cpu.max": "350000 100000\n", "sys/fs/cgroup/a/b/cpu.max": "max 1"},
            3,
        ),
        ("0::/host/only\n", {"sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),
        ("", {}, 8),
        # Version 1, as Docker and Kubernetes have it on older machines.
        ("4:cpu,cpuacct:/a\n0::/\n", {f"{_FIRST}/a/{name}": text for name, text in _TWO_CPUS.items()}, 2),
        ("4:cpuacct,cpu:/of/the/host\n", {f"{_FIRST}/{name}": text for name, text in _TWO_CPUS.items()}, 2),
        ("4:cpu:/\n", {f"{_FIRST}/cpu.cfs_quota_us": "-1\n", f"{_FIRST}/cpu.cfs_period_us": "100000\n"}, 8),
    ],
)
def test_a_cgroup_quota_limits_the_cpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, files: dict[str, str], cpus: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))
    assert instances.available_cpus(cgroup(tmp_path, line, files)) == cpus


@pytest.mark.parametrize(
    ("kind", "config_text", "device"),
    [
        ("CPU", "", instances.CPU),
        ("MODEL", "", instances.CPU),
        ("GPU", None, instances.Device("cuda", 1, required=False)),
        ("GPU", "instance_group [{ count: 1 kind: KIND_GPU }]", instances.Device("cuda", 1)),
        ("GPU", "instance_group [{ count: 1 }]", instances.Device("cuda", 1, required=False)),
        ("KIND_GPU", "# not KIND_GPU", instances.Device("cuda", 1, required=False)),
    ],
)
def test_only_a_config_that_names_a_gpu_insists_on_it(
    tmp_path: Path, kind: str, config_text: str | None, device: instances.Device
) -> None:
    if config_text is not None:
        (tmp_path / "config.pbtxt").write_text(config_text)
    args = {"model_instance_kind": kind, "model_instance_device_id": "1", "model_repository": str(tmp_path)}
    assert instances.wanted_device(args) == device


def test_the_preferred_config_decides_whether_a_gpu_is_required(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "gpu.pbtxt").write_text("instance_group [{ kind: KIND_GPU }]")
    (tmp_path / "config.pbtxt").write_text("instance_group [{ kind: KIND_AUTO }]")
    args = {"model_instance_kind": "GPU", "model_instance_device_id": "0", "model_repository": str(tmp_path)}
    for name, insists in (("", False), ("another", False), ("gpu", True)):
        monkeypatch.setenv(instances.CONFIG_NAME_ENV, name)
        assert instances.wanted_device(args).required == insists
