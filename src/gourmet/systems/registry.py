"""Find the systems: a folder with a contract.py or a system.toml is one.

What else its folder holds is in `gourmet.systems.parts`. A system with only a system.toml uses the code of
its task, or of the system named in `like`. Parts are imported one at a time and only when a verb needs them,
so that asking for labels does not load torch.
"""

from __future__ import annotations

import importlib
import keyword
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, TypeVar

from gourmet.contracts import Generation, System
from gourmet.errors import GourmetError, UnknownSystem, UsageError
from gourmet.pictures.classifier import PictureClassifier
from gourmet.systems import described, folders

Fulfils = TypeVar("Fulfils")
_FILES: Final = ("contract.py", described.FILE)
_DESCRIBED: Final = "described_parts"
_OF_CLASSIFIERS: Final = "gourmet.systems.described_pictures"


def names() -> tuple[str, ...]:
    paths = (path for folder in folders() for file in _FILES for path in folder.glob(f"*/{file}"))
    return tuple(sorted({path.parent.name for path in paths if path.parent.name.isidentifier()}))


def folder_of(system: str) -> Path:
    for folder in folders() if system.isidentifier() else ():
        if any((folder / system / file).exists() for file in _FILES):
            return folder / system
    raise UnknownSystem(f"no system {system!r}; there are {', '.join(names())}")


def load_part(system: str, module: str, name: str, protocol: type[Fulfils]) -> Fulfils:
    """Import a part of a system, for `gourmet.systems.parts`; raise if it does not fulfil `protocol`."""
    folder = folder_of(system)
    path = folder / f"{module}.py"
    part: Any
    if (folder / "contract.py").exists():
        if not path.exists():
            raise UnknownSystem(f"the system {system!r} has no {module}.py, so this does not apply to it")
        part = getattr(importlib.import_module(f"gourmet.systems.{system}.{module}"), name, None)
    else:
        part = _described(folder, module)
    if not isinstance(part, protocol):
        raise GourmetError(
            f"{path} has no {name} that fulfils {protocol.__module__}.{protocol.__qualname__}: "
            "gourmet.systems.parts says what each file holds"
        )
    return part


def _described(folder: Path, module: str) -> Any:
    """Return a part of a system that is only data."""
    like = described.system_used_by(folder)
    if like and like not in patterns():
        raise GourmetError(
            f"{folder / described.FILE} is like {like!r}, and may be like {', '.join(patterns())}"
        )
    if module == "contract":
        of_classifier = partial(described.classifier, folder=folder)
        return described.read_description(folder, parts_like(like).contract if like else of_classifier)
    make = getattr(parts_like(like), module, None)
    if not make:
        raise UnknownSystem(f"the system {folder.name!r} is only data, so this does not apply to it")
    return make(_described(folder, "contract"))


def parts_like(like: str) -> Any:
    """Import the parts of a system of data that is `like` one with code, or else a classifier."""
    return importlib.import_module(f"gourmet.systems.{like}.{_DESCRIBED}" if like else _OF_CLASSIFIERS)


def patterns() -> tuple[str, ...]:
    """Return the systems with code that a system of data may be modelled on."""
    code = [name for name in names() if not is_data(name)]
    return tuple(name for name in code if (folder_of(name) / f"{_DESCRIBED}.py").exists())


@cache
def load(system: str) -> System:
    """Load a system's contract."""
    contract = _contract(system, System)  # type: ignore[type-abstract]
    return classification(system) if contract.task == "classification" else generation(system)


def _contract(system: str, protocol: type[Fulfils]) -> Fulfils:
    return load_part(system, "contract", "SYSTEM", protocol)


def load_all() -> dict[str, System]:
    """Load the contracts of all systems that can be used."""
    unusable = broken()
    return {name: load(name) for name in names() if name not in unusable}


def is_data(system: str) -> bool:
    return not (folder_of(system) / "contract.py").exists()


def broken() -> dict[str, str]:
    """Return the systems that cannot be used, such as half removed ones, with the reason."""
    known, problems = names(), dict[str, str]()
    for path in (path.parent for folder in folders() for path in folder.glob(f"*/{described.SAMPLE}")):
        if path.name not in known:
            problems[path.name] = f"{path} has no {described.FILE}"
    for name in filter(is_data, known):
        try:
            load(name).sample()
        except GourmetError as exc:
            problems[name] = str(exc)
        except OSError as exc:
            problems[name] = f"{exc.filename} is missing"
    return problems


def check_free(name: str) -> None:
    """Raise unless a system that is only data may be called `name`, and none is."""
    # A module of the package would be hidden by a system of its name: no folder of systems may hold either.
    if not described.NAME.fullmatch(name) or keyword.iskeyword(name):
        raise UsageError(
            f"{name!r} is not a valid name of a system: use 2 to 32 lower-case letters, digits and _, "
            "a letter first"
        )
    for path in (folder / file for folder in folders() for file in (name, f"{name}.py")):
        if path.exists():
            raise UsageError(f"{path} is there already: choose another name than {name!r}")


def usual_title(name: str) -> str:
    return name.replace("_", " ").capitalize()


def classification(system: str) -> PictureClassifier:
    """Load a system that must be a classifier of pictures."""
    return _contract(system, PictureClassifier)


def generation(system: str) -> Generation:
    """Load a system that must generate text."""
    return _contract(system, Generation)  # type: ignore[type-abstract]
