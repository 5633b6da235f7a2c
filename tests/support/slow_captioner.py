"""The captioner with a made-up network whose steps can be slowed, so that a test sees a caption grow."""

from __future__ import annotations

import shutil
from pathlib import Path

_SUPPORT = Path(__file__).parent
_MODEL = """
from gourmet.runtime.decoding.triton_model import GenerationModel
from gourmet.systems.registry import piece


class TritonPythonModel(GenerationModel):
    @staticmethod
    def part_of_system(_, *which):
        return piece("captions", *which)
"""


def slow_captioner(folder: Path, threshold: float) -> Path:
    """A repository with both of its models; Triton needs GOURMET_SYSTEMS and CAPTIONS_PAUSE_S."""
    for name in ("captions", "captions_stream"):
        ours = folder / name.replace("captions", "captioner")
        shutil.copytree(_SUPPORT / "models" / name, ours)
        config = (ours / "config.pbtxt").read_text().replace("captions", "captioner")
        sure = f'parameters [ {{ key: "threshold" value: {{ string_value: "{threshold}" }} }} ]\n'
        (ours / "config.pbtxt").write_text(config + sure)
        (ours / "1" / "model.py").write_text(_MODEL)
    package = folder / "captioner_stream" / "1" / "package.json"
    package.write_text(package.read_text().replace("captions", "captioner"))
    return folder
