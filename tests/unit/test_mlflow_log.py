"""The MLflow record of a run, and the error without MLflow."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest

from gourmet.errors import GourmetError
from gourmet.training.mlflow_log import logged


def test_a_missing_mlflow_is_reported_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with (
        pytest.raises(
            GourmetError, match=r"not installed here: .*requirements/mlflow\.txt.*without --mlflow"
        ),
        logged(tmp_path, "system", {}, store=tmp_path / "mlruns"),
    ):
        pass
    assert not (tmp_path / "mlruns").exists()


def test_a_run_and_its_resumption_are_one_with_its_curves_and_files(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="optional: pip install -r requirements/mlflow.txt")
    folder, store = tmp_path / "run", tmp_path / "mlruns"
    folder.mkdir()
    for name in ("best.safetensors", "checkpoint.pt"):
        (folder / name).write_bytes(b"weights")
    stopped = contextlib.suppress(KeyboardInterrupt)
    with stopped, logged(folder, "system", {"width": 256}, store=store) as (run, tell):
        tell({"epoch": 1, "loss": 2.0, "phase": "warm"})
        raise KeyboardInterrupt
    client = mlflow.MlflowClient(tracking_uri=store.as_uri())
    assert client.get_run(run).info.status == "KILLED"
    with logged(folder, "system", {"width": 256}, run, store) as (again, tell):
        tell({"epoch": 2, "loss": 1.0})
    assert again == run
    result = client.get_run(run)
    assert result.info.status == "FINISHED"
    assert result.data.params == {"width": "256"}
    assert [(metric.step, metric.value) for metric in client.get_metric_history(run, "loss")] == [
        (1, 2.0),
        (2, 1.0),
    ]
    assert [artifact.path for artifact in client.list_artifacts(run)] == ["best.safetensors"]
    assert result.data.tags["mlflow.source.git.commit"]
