"""What the import-linter contracts of pyproject.toml cannot say about the house."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gourmet import repository
from gourmet.systems import registry

ROOT = Path(__file__).parents[2]
TRITON_CLIENTS = {"tritonclient", "geventhttpclient", "grpc"}
# A verb imports these when it needs them; the others compute with torch. So do networks' own modules.
WITHOUT_TORCH = re.compile(
    r"app\b|gourmet\.(cli|commands|doctor|measure|lab|tuning|serving|client|reports|pictures|runtime|contracts"
    r"|systems\.(registry|\w+\.contract))\b(?!.*_network$)"
)
# Where a system may be named: its folder, its served models, its feature of the app.
FEATURES = "app.features."


def named_modules() -> dict[str, Path]:
    """Every module by its name; those of triton/ by their folders, since they lie on no path but Triton's."""
    found = {}
    for folder in (ROOT / "app", ROOT / "src" / "gourmet", ROOT / "triton"):
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder.parent).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = named_modules()
IN_TRITON = [name for name in MODULES if name.startswith("triton.")]


def imported(path: Path) -> set[str]:
    """The modules that a file names in its import statements, wherever they stand."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    return names | {
        alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }


def test_nothing_waits_for_torch_that_does_not_compute_with_it(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("module", IN_TRITON)
def test_what_runs_inside_triton_imports_contracts_and_what_serving_needs(module: str) -> None:
    allowed = re.compile(r"gourmet\.(contracts|errors|runtime|pictures|systems\.\w+)\b")
    ours = {name for name in imported(MODULES[module]) if name.startswith("gourmet")}
    assert not {name for name in ours if not allowed.match(name)}
    top = re.findall(
        r"^(?:import|from) (torch|torchvision)\b", MODULES[module].read_text(encoding="utf-8"), re.M
    )
    assert not top or module.endswith("_network"), "a network is a module of its own, imported by an instance"


def test_one_package_speaks_to_triton() -> None:
    for folder in ("app", "src", "triton", "benchmarks", "scripts"):
        for path in (ROOT / folder).rglob("*.py"):
            if ROOT / "src" / "gourmet" / "client" not in path.parents:
                assert not {name.partition(".")[0] for name in imported(path)} & TRITON_CLIENTS, path


def test_asking_over_http_needs_no_library_of_a_client() -> None:
    """The app is light, and NVIDIA's image has none; what speaks gRPC is imported when it is used."""
    heavy = TRITON_CLIENTS | {"gevent"}
    program = f"import sys, gourmet.client.triton; sys.exit(bool({heavy} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-P", "-c", program], check=False).returncode == 0


def names_of(system: str) -> set[str]:
    """The names that stand for one system only."""
    models = [
        name
        for name in repository.model_names(repository.DEFAULT)
        if f'"{system}"' in (repository.DEFAULT / name / "config.pbtxt").read_text()
    ]
    return {system, *models}


def documentation(tree: ast.AST) -> set[ast.AST]:
    """What only the documentation of the API shows: examples of its schemas."""
    keywords = (node for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "examples")
    return {node for keyword in keywords for node in ast.walk(keyword)}


@pytest.mark.parametrize("system", registry.names())
def test_nothing_else_has_a_system_s_name_in_it(system: str) -> None:
    """Docstrings, help and the documentation may give examples: the defaults of the README."""
    names, wrong = names_of(system), []
    for module, path in MODULES.items():
        if module.startswith((f"gourmet.systems.{system}", "triton.models.", FEATURES)):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        shown = documentation(tree)
        wrong += [
            f"{module}:{node.lineno} {node.value!r}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and node.value in names and node not in shown
        ]
    assert not wrong
