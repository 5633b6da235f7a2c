"""One language in, another out: all texts go through one loop together, and each is answered when done."""

from gourmet.runtime.decoding.triton_model import GenerationModel
from gourmet.systems.registry import piece


class TritonPythonModel(GenerationModel):
    """The translator that the config names; gourmet.systems.translator.serving is what it does."""

    part_of_system = staticmethod(piece)
