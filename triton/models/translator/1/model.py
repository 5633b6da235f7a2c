"""Translate texts. One loop works on all texts and answers each when it is done."""

from gourmet.generation.triton_model import GenerationModel
from gourmet.systems.registry import piece


class TritonPythonModel(GenerationModel):
    """The translator. Its code is gourmet.systems.translator.serving."""

    part_of_system = staticmethod(piece)
