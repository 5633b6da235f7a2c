"""Russian in, English out: all texts that are there go through one loop, and each is answered when done."""

from gourmet.runtime.decoding.triton_model import GenerationModel
from gourmet.systems.registry import piece


class TritonPythonModel(GenerationModel):
    """The translator, which the config names; gourmet.systems.translator.serving is what it does."""

    part_of_system = staticmethod(piece)
