"""Find Triton's parts in the PyPI wheel `nvidia-pytriton`, and check what it needs from the machine."""

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
# The Python backend creates a folder in /tmp at each start, and a killed server leaves it there. A path of
# the same length puts it into the server's own folder, which is removed.
_ENVIRONMENTS: Final = b"/tmp/python_env_"
_IN_OWN_FOLDER: Final = b"././/python_env_"
_PYTHON: Final = f"{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True)
class TritonWheel:
    """The paths of a server's parts."""

    server: Path
    libraries: Path
    libpython_dir: Path | None  # None if the system's loader finds libpython

    def environment(self) -> dict[str, str]:
        """Return the environment variables of a server.

        Stubs use the packages of the first python3 on PATH, so this environment comes first. PYTHONPATH would
        not do: stubs for Python 3.11 and later ignore it.
        """
        libraries = [self.libraries, self.libpython_dir, os.environ.get("LD_LIBRARY_PATH")]
        return {
            **os.environ,
            "LD_LIBRARY_PATH": os.pathsep.join(str(path) for path in libraries if path),
            "PATH": os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)]),
            # onnxruntime sends telemetry unless this is set before it is imported.
            "ORT_DISABLE_TELEMETRY": "1",
            # Absolute, since a server works in a folder of its own.
            FOLDERS_ENV: os.pathsep.join(map(str, folders()[1:])),
            HOME_ENV: str(home()),
        }

    def assemble_backends(self, into: Path) -> Path:
        """Copy the backends into a folder. Triton refuses links that lead out of it."""
        own = [model.parent for model in own_backends().glob("*/model.py")]
        for backend in (self.server / "backends" / "python", *own):
            shutil.copytree(backend, into / backend.name, ignore=shutil.ignore_patterns("__pycache__"))
        stub = self.server / "python_backend_stubs" / _PYTHON / "triton_python_backend_stub"
        shutil.copy2(stub, into / "python")
        library = into / "python" / "libtriton_python.so"
        library.write_bytes(library.read_bytes().replace(_ENVIRONMENTS, _IN_OWN_FOLDER))
        return into


def own_backends() -> Path:
    """Return the folder of this project's own backends."""
    folder = Path(os.environ.get(BACKENDS_ENV, shipped("triton/backends")))
    if not folder.is_dir():
        raise GourmetError(
            f"{folder} has no backends: run from a checkout, or set {BACKENDS_ENV} to its triton/backends"
        )
    return folder


def find_wheel() -> TritonWheel:
    """Return the wheel of this environment; raise GourmetError if it is missing or cannot work here."""
    spec = find_spec("pytriton")
    if spec is None or spec.origin is None:
        raise GourmetError(
            "no Triton in this environment: the package nvidia-pytriton is missing. Run `make setup`, on a "
            "system with glibc 2.35 or newer (such as Debian 12 or Ubuntu 22.04)"
        )
    if (numpy := version("numpy")).split(".")[0] != "1":
        raise GourmetError(
            f"numpy {numpy} is installed, but with numpy 2 this Triton passes empty tensors to Python models "
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
            f"{library} is missing on this machine, and Triton's Python backend needs it: "
            f"install it (Debian and Ubuntu: `apt install libpython{_PYTHON}`)"
        ) from exc
    return None
