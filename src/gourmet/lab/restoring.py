"""A process that restores what the server served before, when a notebook's kernel has ended.

python -m gourmet.lab.restoring URL    # reads lines until its input ends, as it does with a kernel
                                       # that is killed as well: [model, config or null], or a process to end
"""

from __future__ import annotations

import contextlib
import json
import sys

from gourmet.errors import GourmetError
from gourmet.repository.config_change import differs_from_disk
from gourmet.repository.models import read_config, repository_of
from gourmet.served.files import own_models
from gourmet.stack.connect import LOADS_WITHIN_S, connect
from gourmet.stack.preflight import waits_until_asked
from gourmet.systems.own_folder import is_own_copy, remove_own_copy
from gourmet.triton_client.model_config import as_json


def restore(url: str, lines: list[str]) -> None:
    for model, config in map(json.loads, lines):
        with contextlib.suppress(GourmetError), connect(url, LOADS_WITHIN_S) as triton:
            if config:
                triton.load(model, config)
            elif model in triton.ready_models():
                triton.unload(model)
                remove_own_copy(model)


def restore_models(url: str) -> None:
    """Load every model with the config of its files; unload models for study and copies of own folders."""
    with connect(url, LOADS_WITHIN_S) as triton:
        for model in triton.ready_models():
            folder = repository_of(model) / model
            if not folder.is_dir():
                if is_own_copy(own_models() / model):
                    triton.unload(model)
                    remove_own_copy(model)
                continue
            config = read_config(folder)
            if waits_until_asked(as_json(config)):
                triton.unload(model)
            elif differs_from_disk(triton.config(model), as_json(config)):
                triton.load(model, as_json(config))


if __name__ == "__main__":
    restore(sys.argv[1], sys.stdin.readlines())
