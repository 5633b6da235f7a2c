"""Pictures in, words out: the model of every system that generates."""

from gourmet.generation.triton_model import GenerationModel
from gourmet.systems.parts import SystemParts


class TritonPythonModel(GenerationModel):
    parts_of = SystemParts
