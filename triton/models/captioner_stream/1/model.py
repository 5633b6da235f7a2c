"""A picture in, a sentence out, word by word: the same as `captioner`, but that its config is decoupled.

Each piece is sent as soon as the loop has it, and the last is marked final. TOKENS and SCORE are of what was
answered so far. The network is in the package of `captioner`, to which package.json refers.
"""

from gourmet.runtime.decoding.triton_model import GenerationModel
from gourmet.systems.registry import piece


class TritonPythonModel(GenerationModel):
    """The captioner, which the config names; gourmet.systems.captioner.serving is what it does."""

    part_of_system = staticmethod(piece)
