"""One language in, another out, word by word: as the model beside it, but that its config is decoupled.

Each piece is sent as soon as the loop has it, and the last is marked final. TOKENS and SCORE are of what was
answered so far. The network is in the package to which package.json refers.
"""

from gourmet.runtime.decoding.triton_model import GenerationModel
from gourmet.systems.registry import piece


class TritonPythonModel(GenerationModel):
    """The translator that the config names; gourmet.systems.translator.serving is what it does."""

    part_of_system = staticmethod(piece)
