"""Where the Triton of the PyPI wheel `nvidia-pytriton` keeps its parts, and what it needs of the machine."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from gourmet.errors import GourmetError
from gourmet.systems import FOLDERS_ENV, folders

MIN_GLIBC: Final = (2, 35)
_NEWER_SYSTEM: Final = "use Debian 12, Ubuntu 22.04 or newer, or the containers (docker-compose.cpu.yaml)"
# The stub starts one interpreter per model instance and is built for one version each.
PYTHONS: Final = ((3, 11), (3, 12))

# triton/backends/ lies beside src/ in a checkout; in an installed image the environment says where.
BACKENDS_ENV: Final = "GOURMET_BACKENDS"
_CHECKOUT: Final = Path(__file__).resolve().parents[3]


class TritonUnusable(GourmetError):
    """The wheel, or something it needs of this machine, is missing or of the wrong version."""


@dataclass(frozen=True)
class TritonWheel:
    """The parts of the wheel that a server is put together from."""

    binary: Path
    libraries: Path
    python_backend: Path
    stub: Path
    caches: Path
    libpython_dir: Path | None

    def environment(self) -> dict[str, str]:
        """The variables that a server needs.

        PATH leads the stubs to this environment's packages, gourmet among them: the first python3 on it
        is the one they take for their own. PYTHONPATH would not: stubs for Python 3.11 on ignore it.
        """
        libraries = [self.libraries, self.libpython_dir, os.environ.get("LD_LIBRARY_PATH")]
        return {
            **os.environ,
            "LD_LIBRARY_PATH": os.pathsep.join(str(path) for path in libraries if path),
            "PATH": os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)]),
            # onnxruntime reports its use over the network unless this is set before it is imported.
            "ORT_DISABLE_TELEMETRY": "1",
            # Absolute, since a server works in a folder of its own.
            FOLDERS_ENV: os.pathsep.join(map(str, folders()[1:])),
        }

    def assemble_backends(self, into: Path) -> Path:
        """Fill `into` with the backends to serve with; copies, since Triton refuses links that leave it."""
        shutil.copytree(self.python_backend, into / "python", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy2(self.stub, into / "python")
        for backend in sorted(path for path in own_backends().iterdir() if (path / "model.py").is_file()):
            shutil.copytree(backend, into / backend.name, ignore=shutil.ignore_patterns("__pycache__"))
        return into


def own_backends() -> Path:
    """The folder of the backends that this project brings itself."""
    folder = Path(os.environ.get(BACKENDS_ENV, _CHECKOUT / "triton" / "backends"))
    if not folder.is_dir():
        raise TritonUnusable(
            f"no backends at {folder}: run from a checkout, or point {BACKENDS_ENV} at its triton/backends"
        )
    return folder


def find_wheel() -> TritonWheel:
    """The wheel of this environment, checked; raises TritonUnusable with the next step."""
    check_python(sys.version_info[:2])
    check_glibc(platform.libc_ver())
    spec = find_spec("pytriton")
    if spec is None or spec.origin is None:
        raise TritonUnusable(
            "no Triton in this environment: the package nvidia-pytriton is missing; "
            "run `make setup`, or `pip install -r requirements.txt`"
        )
    root = Path(spec.origin).parent
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    wheel = TritonWheel(
        binary=root / "tritonserver" / "bin" / "tritonserver",
        libraries=root.parent / "nvidia_pytriton.libs",
        python_backend=root / "tritonserver" / "backends" / "python",
        stub=root / "tritonserver" / "python_backend_stubs" / version / "triton_python_backend_stub",
        caches=root / "tritonserver" / "caches",
        libpython_dir=libpython_dir(version),
    )
    for part in (wheel.binary, wheel.libraries, wheel.python_backend, wheel.stub):
        if not part.exists():
            raise TritonUnusable(
                f"the installed nvidia-pytriton has no {part.name}: reinstall it with "
                "`pip install --force-reinstall --no-deps -r requirements/triton.txt`"
            )
    check_numpy(root.parent)
    own_backends()
    return wheel


def check_python(version: tuple[int, ...]) -> None:
    """Raise unless the packages pinned here exist for this Python."""
    if version[:2] not in PYTHONS:
        allowed = " or ".join(f"{major}.{minor}" for major, minor in PYTHONS)
        raise TritonUnusable(
            f"this is Python {version[0]}.{version[1]}; Python {allowed} is needed: install one and "
            f"run `make PYTHON=python3.11 up`"
        )


def check_glibc(libc: tuple[str, str]) -> None:
    """Raise unless the C library is new enough for the server's binary."""
    name, version = libc
    needed = ".".join(str(part) for part in MIN_GLIBC)
    if name != "glibc" or tuple(int(part) for part in version.split(".")[:2]) < MIN_GLIBC:
        has = (
            f"this system has glibc {version}" if name == "glibc" else "this system's C library is not glibc"
        )
        raise TritonUnusable(f"this system {has}; Triton needs glibc {needed} or newer: {_NEWER_SYSTEM}")


def check_numpy(site_packages: Path) -> None:
    """Raise if the models would import numpy 2, read from disk since numpy itself may be broken."""
    found = [package.version for package in distributions(name="numpy", path=[str(site_packages)])]
    if not found:
        raise TritonUnusable("numpy is not installed where Triton's models look for it: run `make setup`")
    if int(found[0].split(".")[0]) >= 2:
        raise TritonUnusable(
            f"numpy {found[0]} is installed, with which this Triton hands empty tensors to Python models "
            "without an error: run `pip install 'numpy<2'`"
        )


def libpython_dir(version: str) -> Path | None:
    """The folder of libpython, or None where the system's loader finds it by itself."""
    library = f"libpython{version}.so.1.0"
    folder = Path(str(sysconfig.get_config_var("LIBDIR")))
    if (folder / library).exists():
        return folder
    try:
        ctypes.CDLL(library)
    except OSError as exc:
        raise TritonUnusable(
            f"{library} was not found on this machine, and Triton's Python backend links it: "
            f"install it (Debian and Ubuntu: `apt install libpython{version}`)"
        ) from exc
    return None
