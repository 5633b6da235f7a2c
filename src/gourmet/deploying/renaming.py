"""A system that is data, and its models, get another name; all of it, or everything is as it was."""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gourmet.contracts import SYSTEM_PARAMETER
from gourmet.deploying.deploy import replace_text
from gourmet.deploying.removal import models_of
from gourmet.errors import UsageError
from gourmet.repository import CONFIG, repository_text
from gourmet.repository.config_file import ConfigFile
from gourmet.runtime import manifest
from gourmet.runtime.decoding import package
from gourmet.runtime.signals import stops_held_back
from gourmet.systems import described, registry


@dataclass(frozen=True)
class Renaming:
    """The system `old` becomes `new`."""

    old: str
    new: str

    def model(self, name: str) -> str:
        """What one of its models is called then; a name that is not made of the system's stays."""
        return re.sub(rf"^{self.old}(?=_|$)", self.new, name)

    def apply(self, repositories: tuple[Path, ...], undo: ExitStack) -> list[tuple[str, Path]]:
        """Rename, and leave with `undo` how to go back; returns the models, with their names before."""
        folder = registry.folder_of(self.old)
        if not registry.is_data(self.old):
            raise UsageError(f"{self.old} is not data that `gourmet new` made, but code: its name is in it")
        registry.check_free(self.new)
        moves = [(each, each.with_name(self.model(each.name))) for each in models_of(self.old, repositories)]
        for before, after in moves:
            if before != after and any((each / after.name).exists() for each in repositories):
                raise UsageError(f"{after} is there already: choose another name than {self.new!r}")
        for before, after in [*moves, (folder, folder.with_name(self.new))]:
            texts = {
                path.relative_to(before): self._renamed(path, before.name)
                for path in before.rglob("*")
                if path.name
                in (CONFIG, manifest.MANIFEST, package.REFERENCE, described.FILE, described.MODEL_CARD)
            }
            with stops_held_back():
                before.rename(after)
                undo.callback(after.rename, before)
            for path, text in texts.items():
                replace_text(after / path, text, undo)
        return [(before.name, after) for before, after in moves]

    def _renamed(self, path: Path, model: str) -> str:
        """A file of a model, or of the system, with the new names in it."""
        if path.name == package.REFERENCE:
            about = package.read_reference(path)
            return package.reference_to(self.model(about["model"]), about["sha256"])
        if path.name == manifest.MANIFEST:
            facts = self._facts(manifest.read(path.parent), model)
            if (reference := path.with_name(package.REFERENCE)).exists():
                refers = self._renamed(reference, model).encode()
                facts |= {"sha256": hashlib.sha256(refers).hexdigest(), "bytes": len(refers)}
            return json.dumps(facts, indent=2) + "\n"
        if path.name == CONFIG:
            file = ConfigFile.read(path.parent)
            name = rf'^(name:\s*"){re.escape(model)}"'
            by_hand = re.sub(name, rf'\g<1>{self.model(model)}"', file.by_hand, flags=re.M)
            system = rf'(key:\s*"{SYSTEM_PARAMETER}"\s*value:?\s*{{\s*string_value:\s*"){self.old}"'
            by_hand = re.sub(system, rf'\g<1>{self.new}"', by_hand)
            return replace(file, by_hand=by_hand, generated=self._facts(file.generated, model)).text()
        # A title that somebody chose stays.
        old, new = map(registry.usual_title, (self.old, self.new))
        text = re.sub(rf'^(# |title = "){old}("?)$', rf"\g<1>{new}\g<2>", repository_text(path), flags=re.M)
        return re.sub(rf"(`gourmet \w+ ){self.old}\b", rf"\g<1>{self.new}", text)

    def _facts(self, facts: dict[str, Any], model: str) -> dict[str, Any]:
        """A manifest, or a config, which may be in one."""
        found = dict(facts)
        for key, value in facts.items():
            if key in ("name", "model") and value == model:
                found[key] = self.model(model)
            elif key == SYSTEM_PARAMETER:
                found[key] = {"string_value": self.new} if isinstance(value, dict) else self.new
            elif key in ("config", "network", "parameters") and isinstance(value, dict):
                found[key] = self._facts(value, model)
        return found
