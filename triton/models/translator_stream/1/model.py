"""Translate texts word by word: `translator` with a decoupled config.

Each piece is sent as soon as the loop has it; the last one is marked final. TOKENS and SCORE are those of the
answer so far. package.json refers to the package of `translator`, which has the network.
"""

from gourmet.generation.triton_model import GenerationModel
from gourmet.systems.parts import SystemParts


class TritonPythonModel(GenerationModel):
    """The translator. Its code is gourmet.systems.translator.serving."""

    parts_of = SystemParts
