"""The command `gourmet`, with a verb for each task.

Verbs are in gourmet.commands. A module is imported only when its verb is called, so that `gourmet --help` and
`gourmet up` do not wait for torch.
"""

from __future__ import annotations

import atexit
import importlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

import click

from gourmet.errors import GourmetError, echo
from gourmet.served.files import new_token
from gourmet.served.optional import missing
from gourmet.served.signals import sigterm_unwinds

# Verbs in one module, gourmet.commands.models.
_OF_MODELS: Final = ("list", "load", "unload", "rollback", "remove")
# verb -> one line for --help. The other modules in gourmet.commands have the names of their commands.
GROUPS: Final[dict[str, dict[str, str]]] = {
    "Serve": {
        "up": "Run the product: Triton and the web app, until Ctrl-C.",
        "doctor": "Diagnose this machine and the running stack, with the next steps.",
        "list": "List systems, models and versions: which serves, since when, how large.",
        "config": "Show or change the config of a served model while it runs.",
        "load": "Load a model, or a folder of your own, into the running Triton.",
        "unload": "Unload a model from the running Triton.",
    },
    "Models": {
        "new": "Make a picture classification system, and serve your weights as its model.",
        "train": "Train a system's network on your data.",
        "evaluate": "Measure a trained network: accuracy, calibration, mistakes.",
        "learn-more": "Fine-tune what is served on your own labelled pictures.",
        "deploy": "Export trained weights into the model repository, through a gate.",
        "rollback": "Go back to the version before, of a model or of a whole system.",
        "remove": "Remove a system, a model or a version.",
    },
    "Use": {
        "classify": "Classify many photos into a table; interrupted runs resume.",
        "translate": "Translate Russian texts into English, through the running stack.",
        "caption": "Describe photos in a sentence each, through the running stack.",
        "mcp": "Offer classification and translation to an agent, as tools (MCP).",
        "check": "Measure a served model on many pictures: accuracy, certainty, speed.",
    },
    "Measure": {
        "bench": "Measure speed against a baseline, and check the answers.",
        "tune": "Find the best config of a served model on this machine.",
        "roofline": "Compare a network's operations and memory traffic, by layer, with a machine.",
        "perf-analyzer": "Run NVIDIA's perf_analyzer with the libraries it needs.",
    },
    "Study": {
        "lab": "Open a lab notebook in JupyterLab, next to a running Triton.",
        "deployer": "Export a network for Triton, with the flags of NVIDIA's deployer.",
    },
}
VERBS: Final = {verb: words for verbs in GROUPS.values() for verb, words in verbs.items()}


class Verbs(click.Group):
    """A group that imports a verb when it is called, and prints a GourmetError in one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in VERBS:
            return None
        module = name.replace("-", "_")
        file = "models" if name in _OF_MODELS else module
        command: click.Command = getattr(importlib.import_module(f"gourmet.commands.{file}"), module)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for group, verbs in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl(list(verbs.items()))

    def invoke(self, ctx: click.Context) -> object:
        try:
            try:
                return super().invoke(ctx)
            except ModuleNotFoundError as exc:
                raise missing(exc) or exc from None
        except GourmetError as exc:
            line = f"Error: {exc}"
            if ctx.invoked_subcommand == "up":
                from gourmet.stack.readable_logs import json_line, wants_json

                line = json_line("gourmet", line, "error") if wants_json(os.environ) else line
            echo(line, err=True)
            ctx.exit(exc.exit_code)


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(package_name="gourmetgram-triton", prog_name="gourmet")
def main() -> None:
    """GourmetGram on Triton: train, deploy, serve, check and measure models."""
    click.get_current_context().with_resource(sigterm_unwinds())
    # onnxruntime sends telemetry unless this is set before it is imported.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        # torchvision's import makes torch create this folder in the temporary folder, where it would stay.
        folder = Path(tempfile.gettempdir(), f"gourmet-torch-{new_token()}")
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
