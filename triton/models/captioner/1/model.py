"""Describe pictures in a sentence. One loop works on all pictures and answers each when it is done."""

from gourmet.generation.triton_model import GenerationModel
from gourmet.systems.parts import SystemParts


class TritonPythonModel(GenerationModel):
    """The captioner. Its code is gourmet.systems.captioner.serving."""

    parts_of = SystemParts
