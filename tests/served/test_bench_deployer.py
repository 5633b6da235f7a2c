"""`gourmet bench deployer`: deploys, measures, goes on where it was stopped, and says what to take.

The command is that of docs/deployer.md, with a smaller network.
"""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from gourmet.cli import main
from gourmet.tasks.classification.deployer import networks

SMALL = "torchvision:shufflenet_v2_x0_5"
PAGE = Path(__file__).parents[2] / "docs" / "deployer.md"
# Nothing is said of how fast it is, so that any machine will do.
QUICK = "--window 0.3 --warm-up 0.2 --steady 90 --rows 4"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench")


def bench(folder: Path, *more: str) -> Result:
    found = re.search(
        r"\$ gourmet bench deployer benchmarked logs torchvision:resnet18 (.*)", PAGE.read_text()
    )
    assert found
    there = [str(folder / "repository"), str(folder / "logs"), SMALL, str(folder / "checkpoint.pth")]
    flags = [*found[1].split(), *QUICK.split(), *more]
    return CliRunner().invoke(main, ["bench", "deployer", *there, *flags])


@pytest.fixture(scope="module")
def measured(folder: Path) -> Result:
    network = networks.network_of(SMALL, None, seed=3).module
    torch.save(network.state_dict(), folder / "checkpoint.pth")
    return bench(folder)


@pytest.mark.slow
def test_every_format_is_measured_and_told_in_the_example_s_tables(folder: Path, measured: Result) -> None:
    assert measured.exit_code == 0, measured.output
    # Of four, a few may be too noisy here, and are named.
    missing = measured.output.count("Rejected")
    found = json.loads((folder / "logs" / "bench.json").read_text())
    assert len(found["points"]) + missing == 4
    assert len(found["points"]) >= 2
    arms = {point["arm"] for point in found["points"]}
    assert arms <= {
        f"{way} {how}" for way in ("ts-script", "onnx") for how in ("static", "dynamic, 1 engine")
    }
    for name in ("tables.md", "index.html"):
        text = (folder / "logs" / name).read_text()
        assert "99% Latency (ms)" in text
        assert "95 % of requests within" in text
        assert "ts-script dynamic, 1 engine" in text
    with (folder / "logs" / "bench.csv").open() as file:
        rows = list(csv.DictReader(file))
    extracted = {"Inferences/Second", "Avg latency", "p90 latency", "p95 latency", "p99 latency"}
    assert all(float(row[column]) > 0 for row in rows for column in extracted)
    assert all(row["Protocol"] == "grpc" for row in rows)


@pytest.mark.slow
def test_the_checkpoint_that_is_named_is_the_one_that_is_measured(folder: Path, measured: Result) -> None:
    for model in ("model_ts_script", "model_onnx"):
        manifest = json.loads((folder / "repository" / model / "1" / "manifest.json").read_text())
        assert manifest["training"]["weights"] == "checkpoint.pth"


@pytest.mark.slow
def test_what_was_measured_is_not_measured_twice(folder: Path, measured: Result) -> None:
    (path,) = (folder / "logs" / "points").glob("*/results.jsonl")
    *kept, lost = path.read_text().splitlines(keepends=True)
    path.write_text("".join(kept))
    again = bench(folder)
    assert again.exit_code == 0, again.output
    *still, measured_again = path.read_text().splitlines(keepends=True)
    assert still == kept
    assert json.loads(measured_again)["key"] == json.loads(lost)["key"]


def test_formats_that_are_not_known_are_refused(tmp_path: Path) -> None:
    done = bench(tmp_path, "--formats", "onnx,trt")
    assert done.exit_code == 2
