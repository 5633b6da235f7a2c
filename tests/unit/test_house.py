"""Rules of the code base that the import-linter contracts of pyproject.toml cannot express."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TRITON_CLIENTS = {"tritonclient", "geventhttpclient", "grpc"}
# A verb imports these when it needs them; the others compute with torch. So do networks' own modules.
WITHOUT_TORCH = re.compile(
    r"app\b|gourmet\.(cli|commands|doctor|measure|lab|tuning|serving|client|reports|pictures|runtime|contracts"
    r"|systems\.(registry|\w+\.contract))\b(?!.*_network$)"
)

SERVES = (
    *("app", "gourmet.client.triton", "gourmet.systems.translator.serving"),
    *("gourmet.tasks.classification.learn_more", "gourmet.commands.translate", "gourmet.commands.learn_more"),
    *("gourmet.commands.deploy", "gourmet.commands.rollback"),
)
FOREIGN = TRITON_CLIENTS | {
    *("gevent", "torch", "torchvision", "transformers", "sacrebleu", "omegaconf"),
    *("onnx", "safetensors", "sklearn", "scipy"),
}


def named_modules() -> dict[str, Path]:
    """Every module by its name; those of triton/ by their folders, since they lie on no path but Triton's."""
    modules = {}
    for folder in (ROOT / "app", ROOT / "src" / "gourmet", ROOT / "triton"):
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder.parent).with_suffix("").parts
            modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return modules


MODULES = named_modules()


def imported(path: Path) -> set[str]:
    """The modules that a file names in its import statements, wherever they stand."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    return names | {
        alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }


def test_modules_that_do_not_compute_with_torch_do_not_import_it(tmp_path: Path) -> None:
    light = [name for name in MODULES if WITHOUT_TORCH.match(name) and not name.endswith("gunicorn_conf")]
    assert len(light) > 100
    code = (
        f"import importlib, sys, types; sys.path.append({str(ROOT)!r})\n"
        "sys.modules['triton_python_backend_utils'] = types.ModuleType('what only Triton brings')\n"
        f"for name in {light}:\n"
        "    importlib.import_module(name)\n"
        "    assert not {'torch', 'torchvision'} & sys.modules.keys(), name"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_only_the_client_package_talks_to_triton() -> None:
    for folder in ("app", "src", "triton", "benchmarks", "scripts"):
        for path in (ROOT / folder).rglob("*.py"):
            if ROOT / "src" / "gourmet" / "client" not in path.parents:
                assert not {name.partition(".")[0] for name in imported(path)} & TRITON_CLIENTS, path


def test_serving_and_teaching_import_no_training_or_client_library(
    tmp_path: Path,
) -> None:
    """The app and the served translator stay light, and NVIDIA's image has none of these packages."""
    code = (
        f"import sys; sys.path.append({str(ROOT)!r}); import {', '.join(SERVES)}; app.create_app(); "
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    command = [sys.executable, "-P", "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stdout.split()
    assert not set(loaded) & FOREIGN
