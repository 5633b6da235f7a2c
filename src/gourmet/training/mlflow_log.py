"""A run told to MLflow as well: parameters, curves, commit and files, in a folder of this machine.

The package is optional (requirements/mlflow.txt); nothing is sent anywhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from gourmet.reports import machine
from gourmet.runtime.optional import optional

STORE: Final = Path("runs") / "mlruns"
# Beside the weights, what says more of a run than they do is small; a checkpoint is neither.
_NOT_FILES: Final = (".pt", ".aside")

OnEpoch = Callable[[Mapping[str, Any]], None]


@contextmanager
def logged(
    folder: Path, experiment: str, parameters: Mapping[str, Any], begun: str = "", store: Path = STORE
) -> Iterator[tuple[str, OnEpoch]]:
    """Yield the number of MLflow's run, and what to tell each epoch; the folder's files go in at the end.

    `begun` is the number of a run that goes on.
    """
    client = _client(store)
    if begun:
        run = client.get_run(begun).info.run_id
        client.update_run(run, status="RUNNING")
    else:
        known = client.get_experiment_by_name(experiment)
        number = known.experiment_id if known else client.create_experiment(experiment)
        commit = {"mlflow.source.git.commit": machine.about().get("commit", "")}
        run = client.create_run(number, run_name=folder.name, tags=commit).info.run_id
        for name, value in parameters.items():
            client.log_param(run, name, value)

    def on_epoch(epoch: Mapping[str, Any]) -> None:
        for name, value in epoch.items():
            if isinstance(value, int | float) and name != "epoch":
                client.log_metric(run, name, float(value), step=int(epoch["epoch"]))

    ended = "KILLED"
    try:
        yield run, on_epoch
        for path in sorted(folder.iterdir()):
            if path.is_file() and path.suffix not in _NOT_FILES:
                client.log_artifact(run, str(path))
        ended = "FINISHED"
    finally:
        client.set_terminated(run, ended)


def _client(store: Path) -> Any:
    # Its folder of files is what a lab of one needs; since 3.13 it wants to be asked for.
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    otherwise = ", or train without --mlflow; curves and log lie in the run's folder either way"
    return optional("mlflow", "--mlflow", "mlflow", otherwise).MlflowClient(
        tracking_uri=store.absolute().as_uri()
    )
