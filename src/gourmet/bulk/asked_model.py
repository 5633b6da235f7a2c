"""Where answers come from, in a form that another process opens for itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gourmet.bulk.open_model import OpenModel, behind_triton


@dataclass(frozen=True)
class AskedModel:
    """A model behind Triton, or the folder of its version, whose file is asked."""

    model: str
    url: str
    folder: str
    timeout_s: float  # of a request to Triton

    def open(self) -> OpenModel:
        if self.folder:
            from gourmet.bulk.model_file import opened  # and ONNX Runtime with it

            return opened(Path(self.folder))
        return behind_triton(self.url, self.model, self.timeout_s)
