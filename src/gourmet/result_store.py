"""Store the results of a long run in a folder, a line each, so that an interrupted run resumes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from pydantic import TypeAdapter

from gourmet.errors import UsageError
from gourmet.runtime.reading import in_short, malformed_as_value_error

Result = TypeVar("Result")

_FILE: Final = "results.jsonl"
_ANYTHING: Final = TypeAdapter[Any](Any)


class ResultStore(Generic[Result]):
    """The results of one run by key: `store.get(turn, "arm")`, `store.put(result, turn, "arm")`.

    Results are dataclasses of type `kind`. Without a folder, they are in memory only. A line that a crash
    truncated is removed, and its result is measured again.
    """

    def __init__(self, folder: Path | None, plan: Mapping[str, Any], kind: type[Result]) -> None:
        """`plan` identifies the run; raise UsageError if the folder has results of another one."""
        self._path = folder / _FILE if folder else None
        self._adapter = TypeAdapter(kind)
        self._results: dict[tuple[str | int, ...], Result] = {}
        if self._path:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._open(self._path, _ANYTHING.dump_python(dict(plan), mode="json"))

    def get(self, *key: str | int) -> Result | None:
        return self._results.get(key)

    def put(self, result: Result, *key: str | int) -> None:
        self._results[key] = result
        if self._path:
            _append(
                self._path,
                {"key": key, "result": self._adapter.dump_python(result, mode="json", by_alias=True)},
            )

    def __iter__(self) -> Iterator[Result]:
        """Iterate over all results, in the order in which they were measured."""
        return iter(self._results.values())

    def __len__(self) -> int:
        return len(self._results)

    def _open(self, path: Path, plan: dict[str, Any]) -> None:
        try:
            if path.is_symlink():  # the results would be written elsewhere
                raise OSError("it is a link")
            lines = _whole_lines(path)
            with malformed_as_value_error():
                stored = dict(json.loads(lines[0])["plan"]) if lines else {}
                for line in map(json.loads, lines[1:] if stored == plan else ()):
                    self._results[tuple(line["key"])] = self._adapter.validate_python(line["result"])
        except (OSError, ValueError) as exc:
            raise UsageError(
                f"{path} has no results of a run ({in_short(exc)}): name another folder, or remove the file"
            ) from exc
        if not lines:
            _append(path, {"plan": plan})
        elif stored != plan:
            changed = ", ".join(sorted(name for name in plan | stored if plan.get(name) != stored.get(name)))
            raise UsageError(
                f"{path.parent} has results of another run, with another {changed}: name another folder, or "
                "remove it"
            )


def _whole_lines(path: Path) -> list[bytes]:
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    if lines and not lines[-1].endswith(b"\n"):
        lines.pop()
        path.write_bytes(b"".join(lines))
    return lines


def _append(path: Path, line: Mapping[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, ensure_ascii=False) + "\n")
