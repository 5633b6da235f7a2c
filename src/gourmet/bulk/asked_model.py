"""Where answers come from, in a form that another process opens for itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gourmet.bulk.model_file import opened
from gourmet.bulk.photos import Photos, through
from gourmet.contracts import ModelInfo
from gourmet.errors import UsageError
from gourmet.pictures.classifier import PictureClassifier
from gourmet.serving.connect import connect
from gourmet.systems import registry


@dataclass(frozen=True)
class AskedModel:
    """A model behind Triton, or the folder of its version, whose file is asked."""

    model: str
    url: str
    folder: str = ""

    def open(self) -> Photos:
        if self.folder:
            info, ask = opened(Path(self.folder))
            return Photos(info, _system(info), ask, lambda: None)
        triton = connect(self.url)
        try:
            info = triton.describe(self.model)
            return Photos(info, _system(info), through(triton, info), triton.close)
        except BaseException:
            triton.close()
            raise


def _system(model: ModelInfo) -> PictureClassifier:
    if not model.system:
        raise UsageError(
            f"the config of {model.name!r} does not say which system it belongs to: name another"
        )
    return registry.classification(model.system)
