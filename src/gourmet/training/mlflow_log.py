"""Log a run to MLflow too: parameters, curves, commit and files, in a local folder.

The package is optional (requirements/mlflow.txt). Nothing is sent over the network.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from gourmet.reports import machine
from gourmet.served.optional import optional

STORE: Final = Path("runs") / "mlruns"
# Files that are not logged: checkpoints, and unfinished ones.
_NOT_FILES: Final = (".pt", ".aside")

OnEpoch = Callable[[Mapping[str, Any]], None]


@contextmanager
def logged(
    folder: Path, experiment: str, parameters: Mapping[str, Any], resumed_run: str = "", store: Path = STORE
) -> Iterator[tuple[str, OnEpoch]]:
    """Yield the id of MLflow's run, and the function to call for each epoch. Log the folder's files at the
    end.

    `resumed_run` is the id of a run that is resumed.
    """
    client = _client(store)
    if resumed_run:
        run = client.get_run(resumed_run).info.run_id
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
    # A local folder is enough here; MLflow 3.13 and later need this variable for it.
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    otherwise = ", or train without --mlflow; curves and log are in the run's folder either way"
    return optional("mlflow", "--mlflow", "mlflow", otherwise).MlflowClient(
        tracking_uri=store.absolute().as_uri()
    )
