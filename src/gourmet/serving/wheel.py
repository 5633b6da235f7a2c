"""Where the Triton of the PyPI wheel `nvidia-pytriton` keeps its parts, and what it needs of the machine."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from gourmet.errors import GourmetError
from gourmet.runtime.files import HOME_ENV, home, shipped
from gourmet.systems import FOLDERS_ENV, folders

BACKENDS_ENV: Final = "GOURMET_BACKENDS"
# Where the Python backend makes a folder at each start, which a killed server leaves; and of the same length,
# the folder that the server works in, which goes with it.
_ENVIRONMENTS: Final = b"/tmp/python_env_"
_IN_OWN_FOLDER: Final = b"././/python_env_"
_PYTHON: Final = f"{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True)
class TritonWheel:
    """Where a server's parts are."""

    server: Path
    libraries: Path
    libpython_dir: Path | None  # None where the system's loader finds it by itself

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
            HOME_ENV: str(home()),
        }

    def assemble_backends(self, into: Path) -> Path:
        """Fill `into` with the backends to serve with; copies, since Triton refuses links that leave it."""
        own = [model.parent for model in own_backends().glob("*/model.py")]
        for backend in (self.server / "backends" / "python", *own):
            shutil.copytree(backend, into / backend.name, ignore=shutil.ignore_patterns("__pycache__"))
        stub = self.server / "python_backend_stubs" / _PYTHON / "triton_python_backend_stub"
        shutil.copy2(stub, into / "python")
        library = into / "python" / "libtriton_python.so"
        library.write_bytes(library.read_bytes().replace(_ENVIRONMENTS, _IN_OWN_FOLDER))
        return into


def own_backends() -> Path:
    """The folder of the backends that this project brings itself."""
    folder = Path(os.environ.get(BACKENDS_ENV, shipped("triton/backends")))
    if not folder.is_dir():
        raise GourmetError(
            f"no backends at {folder}: run from a checkout, or point {BACKENDS_ENV} at its triton/backends"
        )
    return folder


def find_wheel() -> TritonWheel:
    """The wheel of this environment, checked; raises GourmetError with the next step."""
    spec = find_spec("pytriton")
    if spec is None or spec.origin is None:
        raise GourmetError(
            "no Triton in this environment: the package nvidia-pytriton is missing; run `make setup`, on a "
            "system with glibc 2.35 or newer (such as Debian 12 or Ubuntu 22.04)"
        )
    if (numpy := version("numpy")).split(".")[0] != "1":
        raise GourmetError(
            f"numpy {numpy} is installed, with which this Triton hands empty tensors to Python models "
            "without an error: run `pip install 'numpy<2'`"
        )
    own_backends()
    root = Path(spec.origin).parent
    return TritonWheel(root / "tritonserver", root.parent / "nvidia_pytriton.libs", _libpython_dir())


def _libpython_dir() -> Path | None:
    library = f"libpython{_PYTHON}.so.1.0"
    folder = Path(str(sysconfig.get_config_var("LIBDIR")))
    if (folder / library).exists():
        return folder
    try:
        ctypes.CDLL(library)
    except OSError as exc:
        raise GourmetError(
            f"{library} was not found on this machine, and Triton's Python backend links it: "
            f"install it (Debian and Ubuntu: `apt install libpython{_PYTHON}`)"
        ) from exc
    return None
