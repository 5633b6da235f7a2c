"""Compute the rows with Ray Data on an existing cluster: `map_batches` over the names, and Ray's writers.

Ray's guarantees apply: it repeats the tasks of workers and nodes that die, rows have no order, and an
interrupted run starts from the beginning.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from gourmet.bulk.resumable_table import AskedModel, Columns, answered
from gourmet.errors import GourmetError, UsageError
from gourmet.served.optional import optional

_NAME: Final = "item"  # Ray's name of the column
_BATCH: Final = 64  # inputs that a worker gets at a time
_WRITERS: Final = {".parquet": "write_parquet", ".jsonl": "write_json"}


class _Rows:
    """A worker's connection to Triton, and the rows of a batch of names."""

    def __init__(self, open_model: Callable[[], AskedModel]) -> None:
        self._model = open_model()
        self._schema = _schema(self._model.columns)

    def __call__(self, batch: dict[str, Any]) -> Any:
        # Bytes, since names need not be UTF-8.
        names = [os.fsdecode(name) for name in batch[_NAME].tolist()]
        rows = [row for part in answered(self._model, names) for row in part]
        return _pyarrow().Table.from_pylist(rows, schema=self._schema)


def _pyarrow() -> Any:
    return optional("pyarrow", "--engine ray", "ray", ", or use --engine local")


def _schema(columns: Columns) -> Any:
    arrow = _pyarrow()
    types = {str: arrow.string(), float: arrow.float32(), bool: arrow.bool_()}

    def kind(column: type | Sequence[str]) -> Any:
        if isinstance(column, type):
            return types[column]
        return arrow.struct([(name, arrow.float32()) for name in column])

    return arrow.schema([(name, kind(column)) for name, column in columns.items()])


def check_for_ray(out: Path | None) -> None:
    """Raise UsageError unless Ray can write this table, and RAY_ADDRESS names a cluster."""
    if not out or out.suffix not in _WRITERS:
        raise UsageError(f"Ray writes {' and '.join(_WRITERS)}: name such a table with --out")
    if not os.environ.get("RAY_ADDRESS"):
        raise UsageError("--engine ray needs a cluster: start one (`ray start --head`) and set RAY_ADDRESS")


def write_with_ray(open_model: Callable[[], AskedModel], names: Iterable[str], out: Path) -> None:
    """Write the model's answers about `names` into the folder `out`, on the cluster at RAY_ADDRESS."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = optional("ray", "--engine ray", "ray", ", or use --engine local")
    data = optional("ray.data", "--engine ray", "ray", ", or use --engine local")
    try:
        # Workers import modules from the folder of the driver, where a file like PIL.py may lie with the
        # photos.
        with contextlib.chdir("/"):
            ray.init(log_to_driver=False, logging_level="error")
    except (ConnectionError, OSError, RuntimeError, ValueError) as exc:
        raise GourmetError(f"the Ray cluster at {os.environ['RAY_ADDRESS']} cannot be joined: {exc}") from exc
    try:
        data.DataContext.get_current().enable_progress_bars = False
        workers = max(1, int(ray.cluster_resources().get("CPU", 1)))
        rows = data.from_items([os.fsencode(name) for name in names]).map_batches(
            _Rows,
            fn_constructor_args=(open_model,),
            batch_size=_BATCH,
            concurrency=(1, workers),
            num_cpus=0,  # workers wait for Triton; the writers need the CPUs
        )
        getattr(rows, _WRITERS[out.suffix])(str(out.absolute()))
    except ray.exceptions.RayError as exc:
        raise GourmetError(f"Ray: {getattr(exc, 'cause', None) or exc}") from exc
    finally:
        ray.shutdown()
