"""A picture in, a sentence out: all pictures go through one loop, and each is answered when it is done."""

from gourmet.runtime.decoding.triton_model import GenerationModel
from gourmet.systems.registry import piece


class TritonPythonModel(GenerationModel):
    """The captioner, which the config names; gourmet.systems.captioner.serving is what it does."""

    part_of_system = staticmethod(piece)
