"""Pictures in, words out: the model of every system that generates."""

from gourmet.generation.triton_model import GenerationModel
from gourmet.systems.registry import piece


class TritonPythonModel(GenerationModel):
    part_of_system = staticmethod(piece)
