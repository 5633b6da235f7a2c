"""Russian in, English out: all texts that are there go through one loop, and each is answered when done."""

from gourmet.runtime.decoding.triton_model import GenerationModel
from gourmet.systems import registry


class TritonPythonModel(GenerationModel):
    """The translator, which the config names; gourmet.systems.translator.serving is what it does."""

    part_of_system = staticmethod(registry.piece)
