"""Translate texts. One loop works on all texts and answers each when it is done."""

from gourmet.generation.triton_model import GenerationModel
from gourmet.systems.parts import SystemParts


class TritonPythonModel(GenerationModel):
    """The translator. Its code is gourmet.systems.translator.serving."""

    parts_of = SystemParts
